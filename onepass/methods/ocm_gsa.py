"""OCM with the objective of GSA in place of its cross-entropy.

Paper: Guo, Liu, Zhao, "Dealing with Cross-Task Class Discrimination in Online Continual Learning",
CVPR 2023. It reports that GSA improves OCM, but not how the two were joined. With the terms of
`ocm` and of `gsa`:

    first task    L = T1 + T2 + T3 + L_n(X^new)
    later         L = T1 + T2 + T3 + L_n(X^new) + L_u(X^buf) + L_p(X^buf)
                      + strength E_{X^buf} E_{c in K} (o_c - o'_c)^2

Decisions, all ours:

- Every coefficient is 1, as in both papers. Lines that are commented out in the released GSA script
  (2 and 1 times a contrast) suggest a sum like this one.
- X^buf is OCM's own draw and X^mix is GSA's, from one memory.
- In OCM the squared error and the cross-entropy share a forward pass of X^buf. The squared error
  keeps this pass, so the method is exactly OCM without its cross-entropy plus GSA. The 64 images of
  that pass are 1/40 of a step.
- All views have the learner's augmentation. The authors may have used OCM's for its contrasts and
  GSA's for the rest.

Departures: those of `ocm` and of `gsa`.
Cost: that of both: 32 (batch + replay) + replay and batch + current + mix images, forward and
backward, and 17 replay forward through the previous network. Kept: raw samples and labels, and the
previous network.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from onepass.base.parts import ImageCount, Samples, Step
from onepass.base.settings import Preset
from onepass.learning.registry import method
from onepass.learning.traits import Traits
from onepass.memory import MixedReservoir
from onepass.methods.gsa import GSA
from onepass.methods.ocm import OCM


@method(
    "ocm-gsa",
    paper="Guo et al., Dealing with Cross-Task Class Discrimination: GSA joined to OCM",
    year=2023,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class OCMGSA(OCM, GSA):
    """OCM and GSA together. `OCM` and `GSA` explain the settings.

    >>> import onepass
    >>> data = onepass.load("digits")
    >>> learner = onepass.OCMGSA(memory=100, rotations=2, mean=data.mean, std=data.std)
    >>> *_, last = onepass.evaluate(learner, onepass.ClassIncremental(data, tasks=5))
    >>> last.accuracy > 70
    True
    """

    # the paper's equations, not the defaults of GSA, which were tuned for GSA alone
    current: int = 0
    forwards: Literal["joint", "separate"] = "joint"
    statistics: Literal["all", "mix"] = "all"
    new_classes: Literal["batch", "task"] = "batch"

    store: MixedReservoir = field(init=False)
    presets: ClassVar[dict[str, Preset]] = {}
    traits: ClassVar[Traits] = replace(
        OCM.traits,
        exempt={
            "devices_agree": "the window u is drawn by the device's own generator",
        },
    )

    def cost(self, batch: int) -> ImageCount:
        return OCM.cost(self, batch) + GSA.cost(self, batch)

    def teacher_images(self, batch: int) -> int:
        return OCM.teacher_images(self, batch) + GSA.cost(self, batch).trained

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                      (b)
        terms, outputs = self.objective(self, stream)  # T1, T2, T3 of GSA
        information, _ = self.information_terms(stream)  # L_n, L_u, L_p and the squared error
        terms = {**terms, **information}
        loss = torch.stack(list(terms.values())).sum()

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, *outputs, **terms)
