"""Tests of samples, outputs, step reports and image counts."""

import pytest
import torch
from stores import samples

from onepass.base.parts import ImageCount, Output, Samples, Step


def test_samples_are_joined_and_cut_again():
    first, second = samples([0, 1], [5, 6]), samples([2, 3, 4])._replace(weight=torch.zeros(3))
    both = first.then(second)
    assert both.x.tolist() == [5, 6, 2, 3, 4]
    assert both.y.tolist() == [0, 1, 2, 3, 4]
    assert both.weight.tolist() == [1, 1, 0, 0, 0]
    for got, expected in zip(both.cut(2, 3), (first, second), strict=True):
        assert isinstance(got, Samples)
        for part, same in zip(got, expected, strict=True):
            assert torch.equal(part, same)


@pytest.mark.parametrize("sizes", [(5,), (1, 4), (2, 0, 3), (1, 1, 1, 1, 1)])
def test_pieces_are_consecutive_and_of_the_sizes_asked_for(sizes):
    pieces = samples([0, 1, 2, 3, 4]).cut(*sizes)
    assert tuple(len(piece.y) for piece in pieces) == sizes
    assert [label for piece in pieces for label in piece.y.tolist()] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sizes", [(4,), (2, 4)])
def test_pieces_that_do_not_add_up_to_the_samples_are_an_error(sizes):
    with pytest.raises(RuntimeError):
        samples([0, 1, 2, 3, 4]).cut(*sizes)


def test_joining_an_empty_batch_returns_the_same_samples():
    batch, empty = samples([0, 1], [5, 6]), samples([])
    assert batch.then(empty) is batch


# ---- outputs and steps


def an_output():
    logits = torch.arange(6.0).view(2, 3).requires_grad_()
    return Output(2 * logits, torch.tensor([0, 1]), torch.ones(2), lambda: torch.full((2, 4), 7.0))


def test_the_views_of_an_output_are_made_on_access():
    asked = []
    output = an_output()._replace(make_views=lambda: asked.append(1) or torch.zeros(2, 4))
    assert not asked
    assert output.views.shape == (2, 4)
    assert asked == [1]


@pytest.mark.parametrize("what", ["detach", "clone"])
def test_a_reported_output_has_neither_graph_nor_views(what):
    output = an_output()
    reported = getattr(output.detach(), what)()
    assert not reported.logits.requires_grad
    for name in ("logits", "y", "weight"):
        assert torch.equal(getattr(reported, name), getattr(output, name))
    with pytest.raises(LookupError, match="were not kept"):
        _ = reported.views


def test_a_clone_of_an_output_does_not_share_its_tensors():
    output = an_output().detach()
    cloned = output.clone()
    for part in (output.logits, output.y, output.weight):
        part.zero_()
    assert cloned.logits.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert cloned.y.tolist() == [0, 1]
    assert cloned.weight.tolist() == [1, 1]


def test_a_step_reports_its_loss_its_outputs_and_its_terms_without_a_graph():
    output = an_output()
    loss = output.logits.sum()
    step = Step.of(loss, output, output, half=loss / 2)
    assert step.loss.item() == loss.item()
    assert {name: value.item() for name, value in step.terms.items()} == {"half": 15}
    assert len(step.outputs) == 2
    reported = [step.loss, *step.terms.values(), *(output.logits for output in step.outputs)]
    assert not any(tensor.requires_grad for tensor in reported)


def test_image_counts_add_up_by_kind():
    assert ImageCount(1, 2) + ImageCount(10) == ImageCount(11, 2)
    assert ImageCount(5) == ImageCount(5, 0)
    with pytest.raises(TypeError):
        ImageCount(1) + 1
