"""Compares what two closed-form learners hold: equal sums, or what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from onepass.base.parts import Label
from onepass.data.labels import sorted_classes
from onepass.learning.closed_form import ClosedForm


@dataclass(frozen=True)
class Difference:
    """A class whose sums differ, with its number of samples in both learners. Equal numbers mean
    that the samples are others."""

    label: Label
    name: str
    samples: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """The differences of two learners: `settings` without which sums mean the same, as
    (name, value here, value there); `classes`; and `products` if everything but the sums of
    products of features is equal."""

    sums_sha256: tuple[str, str]
    samples: tuple[int, int]
    settings: list[tuple[str, Any, Any]]
    classes: list[Difference]
    products: bool

    @property
    def equal(self) -> bool:
        return self.sums_sha256[0] == self.sums_sha256[1]

    def lines(self) -> Iterator[str]:
        """Yields the comparison as text."""
        if self.equal:
            yield f"equal       {self.samples[0]} samples"
            yield f"sums_sha256 {self.sums_sha256[0]}"
            return
        yield f"different   {self.samples[0]} and {self.samples[1]} samples"
        for name, here, there in self.settings:
            yield f"{name}: {here} and {there}"
        for found in self.classes:
            here, there = found.samples
            counts = f"{here} and {there}" if here != there else f"{here} in both, other"
            yield f"class {found.name}: {counts} samples"
        if self.products:
            yield "counts and sums of all classes are equal, products of features are not"

    def as_json(self) -> dict[str, Any]:
        classes = [{"class": found.label, "samples": found.samples} for found in self.classes]
        settings = {name: [here, there] for name, here, there in self.settings}
        return {
            "equal": self.equal,
            "sums_sha256": self.sums_sha256,
            "samples": self.samples,
            "settings": settings,
            "classes": classes,
            "products": self.products,
        }


def compare(a: ClosedForm, b: ClosedForm) -> Comparison:
    """Returns what differs between the sums of two learners. Classes are compared if both sums mean
    the same: if method, width, grid and projection are equal."""
    hashes, samples = (a.sums_sha256(), b.sums_sha256()), (a.samples, b.samples)
    here, there = a._basis(), b._basis()
    settings = [
        (name, here.get(name), there.get(name))
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    if settings or hashes[0] == hashes[1]:
        return Comparison(hashes, samples, settings, [], products=False)
    classes = list(_differences(a, b))
    return Comparison(hashes, samples, [], classes, products=not classes)


def _differences(a: ClosedForm, b: ClosedForm) -> Iterator[Difference]:
    nothing = (0.0, torch.zeros(0))
    here, there = a.class_sums(), b.class_sums()
    names = dict(zip(b.classes, b.class_names, strict=True))
    names |= dict(zip(a.classes, a.class_names, strict=True))
    for label in sorted_classes({*here, *there}):
        (n, total), (m, other) = here.get(label, nothing), there.get(label, nothing)
        if n != m or not torch.equal(total, other):
            yield Difference(label, names[label], (int(n), int(m)))
