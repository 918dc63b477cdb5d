"""OCM+GSA is exactly the two methods: without either, the other is left."""

import pytest
import torch
from expected_settings import COMPARABLE, defaults
from tiny_learners import BOUNDARY, as_images, batches, learned, small
from torch import Tensor

from onepass import GSA, OCM, OCMGSA
from onepass.base.errors import InputError
from onepass.base.parts import ImageCount
from onepass.methods import ocm as ocm_module

LABELS = [[0, 1, 1], [1, 0], [0, 1, 0], BOUNDARY, [2, 3, 0], [3, 2], BOUNDARY, [4], [5, 4, 1]]


def stream():
    """Returns images of two by three pixels, in three tasks."""
    return as_images(batches(LABELS))


def learner(kind: type, **settings: object):
    known = GSA.presets["common"].settings if kind is GSA else {"rotations": 4}
    return small(kind, **{**known, "net": "mlp", "lr": 0.1, **settings})


def network(trained) -> dict[str, Tensor]:
    """Returns all parameters except those of the projection."""
    own = trained.model.named_parameters()
    return {name: value.detach() for name, value in own if not name.startswith("projection")}


def assert_same(first, other) -> None:
    ours, theirs = network(first), network(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", ["before", "after"])
def test_without_contrast_it_is_gsa(update, monkeypatch):
    monkeypatch.setattr(OCM, "information_terms", lambda self, stream: ({}, None))
    joined = learned(learner(OCMGSA, update=update), stream())
    other = learned(learner(GSA, update=update), stream())
    assert_same(joined, other)
    torch.testing.assert_close(joined.balance.sums, other.balance.sums, rtol=1e-5, atol=1e-6)


def test_without_the_objective_of_gsa_it_is_ocm_without_cross_entropy(monkeypatch):
    nothing = torch.zeros(())
    monkeypatch.setattr(GSA, "paper_objective", lambda *_: ({"T1": nothing}, ()))
    monkeypatch.setattr(ocm_module, "cross_entropy", lambda *_, **__: nothing)
    joined = learned(learner(OCMGSA), stream())
    other = learned(learner(OCM), stream())
    assert_same(joined, other)
    assert torch.equal(joined.model.projection.weight, other.model.projection.weight)


def test_the_loss_is_the_sum_of_all_terms():
    joined, found = learner(OCMGSA), []
    for item in stream():
        if item == BOUNDARY:
            joined.new_task()
            continue
        step = joined.learn(*item)
        found.append(set(step.terms))
        total = sum(float(value) for value in step.terms.values())
        assert float(step.loss) == pytest.approx(total, rel=1e-5)
        assert len(step.outputs) == 2  # X^new and X^mix
    assert found[0] == {"T1", "T2", "T3", "L_n"}
    assert found[-1] == {"T1", "T2", "T3", "L_n", "L_u", "L_p", "logits"}


def test_the_cost_is_that_of_both():
    both = OCMGSA(current=22, mix=40)
    assert both.cost(10) == ImageCount(trained=2432 + 10 + 22 + 40, scored=1088)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 0}, "memory must be at least 1"),
        ({"replay": 0}, "replay must be at least 1"),
        ({"mix": 1}, "mix must be at least 2"),
        ({"rotations": 17}, "rotations must be between 1 and 16"),
    ],
    ids=str,
)
def test_settings_of_both_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        OCMGSA(**settings)


def test_the_defaults_are_the_common_setting():
    expected = {**COMPARABLE, "replay": 64, "mix": 64, "temperature": 0.07, "rotations": 16}
    assert defaults(OCMGSA, expected) == expected
