"""Online continual learning by maximising mutual information: contrast of every sample, turned in
sixteen ways, with all others, and of the memory with what the previous network made of it.

Paper: Guo, Liu, Zhao, "Online Continual Learning through Mutual Information Maximization", ICML
2022. R(x) are the 16 images that x becomes: each half (left, right) turned by 180 degrees or not,
times four turns of the whole; each makes a pseudo-class (y, r) of its own. A batch X gives the
views I = R(X) and aug(R(X)). With f the backbone's features, g a linear projection to 128 numbers,
z = g(f) / |g(f)|, u a window of 128 numbers of f / |f|, drawn anew for each batch, and s_ij =
a (z_i u_j + z_i z_j) / t:

    l(i, j) = -log [e^{s_ij} / sum_{k in I} e^{s_ik}]            l'(i, j): without k = i
    L_n = E_i l'(i, other view of i) + 2 E_i 1/n_i sum_{j of i's pseudo-class, j != i} l'(i, j)
    L_u = E_i 1/n_i sum_{j of i's pseudo-class} l(i, j)
    L_p = E_i 1/n_i sum_{j of i's pseudo-class} l(i, j)          s_ij = z_i z'_j / t, over R(X) only

where n_i counts i's pseudo-class, i included, and z' is the previous network's projection. With
X^new the stream batch, X^buf a draw of min(replay, 7 |seen|) from the memory (current classes
included), K the classes that the previous network knew, and o, o' both networks' logits of two
augmented views of X^buf:

    first task    L = E_{X^new} -log p_y + L_n(X^new)
    later         L = E_{X^buf} -log p_y + L_n(X^new) + L_u(X^buf) + L_p(X^buf)
                      + strength E_{X^buf} E_{c in K} (o_c - o'_c)^2

so that after the first task the stream is trained by contrast alone, and labels are learned from
the memory alone: in short tasks the newest classes are learned late (on the digits, 29 batches a
task, they are what it gets wrong).

Lean, with the same numbers: s_ij is one product, z_i (u_j + z_j); a pseudo-class's mean l is the
logarithm of the sum less z_i times the mean of its keys, so that the large matrix (2048 x 2048) is
read by one log-sum-exp and never masked. All views of stream and memory have one forward (as in the
authors' code), those of X^buf for the logits another; the previous network sees R(X^buf) and its
view for the logits in one, without a graph.

Decisions: mirror images, where they are asked for, are further samples. Images that are not square
have only the eight maps that keep their shape, vectors are their own only view (twice, as nothing
is augmented). `rotations` takes the first so many of the maps, of which the first is the identity.
A backbone of fewer than 128 features has a projection as wide as these, and the window is all of
them.
Departures from the authors' code (gydpku/OCM): the softmax runs over the classes seen so far, not
over all of the dataset. The previous network evaluates; theirs stays in training mode, so that it
sees the statistics of the batch. A sample's own entry, which is a constant in their L_n, and the
1e-8 inside their logarithms, which cuts off the gradient of very unlikely pairs, are left out.
Where 7 |seen| < replay the draw is not smaller, but the rest of it has weight 0, which BatchNorm
sees. a is 1 and strength 1, as for CIFAR100 and TinyImageNet; their CIFAR10 script has a = 0.5
after the first task, that for MNIST a = 0.5 and strength 0. The protocol's augmentation is the
default, `augment="crop-grey-flip"` is theirs. From the paper: it leaves out the window, the weights
and the squared error, for which the code is followed.
Cost: 32 (batch + replay) + replay images, forward and backward, and 17 replay forward through the
previous network; in the first task 33 batch. The similarities of the stream are a matrix of
(32 batch)^2 numbers: batches of hundreds of images are not for this method.
Kept: raw sample and label, and the previous network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onepass.base.parts import ImageCount, Output, Samples, Step
from onepass.base.settings import Preset, require
from onepass.functional.losses import cross_entropy, mean
from onepass.learning.network_copies import PreviousNetwork
from onepass.learning.registry import method
from onepass.learning.replay import Replay
from onepass.learning.traits import Traits
from onepass.nets import build, project

PROJECTED = 128  # at most: a narrower network keeps its width
VIEWS = 2
MAPS = 16
PER_CLASS = 7  # so many samples are replayed for each class seen, as long as there are few


def turned(images: Tensor, count: int) -> Tensor:
    """R: the first `count` of the maps of all images, map by map, (maps n, c, h, w).

    >>> turned(torch.arange(4.0).view(1, 1, 2, 2), 4).flatten(1).int().tolist()
    [[0, 1, 2, 3], [0, 3, 2, 1], [2, 3, 0, 1], [2, 1, 0, 3]]
    """
    if count == 1:
        return images
    left, right = images.tensor_split(2, dim=3)
    other_left, other_right = (half.flip(2, 3) for half in (left, right))
    halves = [(left, right), (left, other_right), (other_left, other_right), (other_left, right)]
    inner = [torch.cat(pair, dim=3) for pair in halves[:count]]
    whole = torch.cat(inner)
    by = 1 if images.shape[2] == images.shape[3] else 2  # quarters of a turn
    turns = [whole.rot90(turn, (2, 3)) for turn in range(0, 4, by)]
    return torch.cat(turns)[: count * len(images)]


def maps_of(shape: torch.Size) -> int:
    """How many maps there are for inputs (n, ...) of this shape."""
    if len(shape) != 4:
        return 1
    return MAPS if shape[2] == shape[3] else MAPS // 2


class Embedded(NamedTuple):
    """Views of n samples, turned in R ways: z a / t and what it is multiplied with, u + z, both
    (views, R, n, d); and the samples' classes and weights, (n)."""

    z: Tensor
    key: Tensor
    y: Tensor
    weight: Tensor


def log_sums(views: Embedded, *, itself: bool = True) -> Tensor:
    """Of each view i the logarithm of the sum of e^{s_ik} over all k of weight 1, (views, R, n);
    i itself among them or not."""
    z, key = views.z.flatten(0, 2), views.key.flatten(0, 2)
    copies = len(key) // len(views.y)
    # where nothing has weight (the memory was forgotten) all stay in, or the sum would be none
    weight = views.weight + (views.weight.sum() == 0)
    # the logarithm of its weight, 0 or -inf, is added to a column by the product itself
    similarity = torch.addmm(weight.log().repeat(copies), z, key.T)
    if not itself:
        own = torch.eye(len(z), dtype=torch.bool, device=z.device)
        similarity = similarity.masked_fill(own, -torch.inf)
    return similarity.logsumexp(dim=1).view(views.z.shape[:-1])


def class_similarity(views: Embedded) -> tuple[Tensor, Tensor]:
    """Of each view i the mean of s_ij over the views j of its pseudo-class, i included,
    (views, R, n); and how many they are, (n)."""
    same = (views.y.unsqueeze(1) == views.y) * views.weight  # (n, n)
    count = len(views.key) * same.sum(dim=1).clamp(min=1)
    keys = same @ views.key.sum(dim=0) / count.unsqueeze(1)  # their mean, (R, n, d)
    return (views.z * keys).sum(dim=-1), count


def over_views(values: Tensor, views: Embedded) -> Tensor:
    """The mean over the views of samples that count."""
    return mean(values.flatten(), views.weight.expand_as(values).flatten())


def class_contrast(views: Embedded) -> Tensor:
    """L_u, and L_p."""
    similarity, _ = class_similarity(views)
    return over_views(log_sums(views) - similarity, views)


def stream_contrast(views: Embedded) -> Tensor:
    """L_n."""
    sums = log_sums(views, itself=False)
    similarity, count = class_similarity(views)
    with_itself = (views.z * views.key).sum(dim=-1)
    with_other = (views.z * views.key.flip(0)).sum(dim=-1)
    # over all of the pseudo-class, less the share of i itself
    to_class = sums - similarity - (sums - with_itself) / count
    return over_views(sums - with_other + 2 * to_class, views)


def squared_error(out: Output, taught: Tensor, among: Tensor) -> Tensor:
    """The mean of (o - o')^2 over samples and the classes `among` (a mask).

    >>> out = Output(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([0]), torch.ones(1))
    >>> float(squared_error(out, torch.zeros(1, 3), torch.tensor([True, True, False])))
    2.5
    """
    per_sample = ((out.logits - taught).square() * among).sum(dim=1) / among.sum().clamp(min=1)
    return mean(per_sample, out.weight)


@method(
    "ocm",
    paper="Guo et al., Online Continual Learning through Mutual Information Maximization",
    year=2022,
    boundaries="uses",
)
@dataclass(kw_only=True, eq=False)
class OCM(Replay):
    """Mutual information maximisation.

    Parameters
    ----------
    memory
        How many samples are kept.
    replay
        How many of them are trained with each stream batch, at most; 7 for each class seen.
    temperature
        t, which similarities are divided by.
    scale
        a, by which they are multiplied, except those with the previous network's.
    strength
        How much the previous network's logits count.
    rotations
        How many of the 16 maps of an image are trained; 1: the image itself alone.

    >>> import onepass
    >>> data = onepass.load("digits")
    >>> learner = onepass.OCM(memory=100, rotations=4, replay=32, mean=data.mean, std=data.std)
    >>> *_, last = onepass.evaluate(learner, onepass.ClassIncremental(data, tasks=5))
    >>> last.accuracy > 50
    True
    """

    temperature: float = 0.07
    scale: float = 1.0
    strength: float = 1.0
    rotations: int = MAPS

    previous: PreviousNetwork = field(init=False)
    traits: ClassVar[Traits] = Traits(
        least_memory=1,
        later_steps_differ=True,
        quick={"rotations": 2},
        exempt={
            "beats_finetuning": "after the first task labels are learned from the memory alone, "
            "and a task of eight batches is over before its classes have a share in it",
            "devices_agree": "the window u is drawn by the device's own generator",
        },
    )
    presets: ClassVar[dict[str, Preset]] = {
        "official": Preset(
            {"augment": "crop-grey-flip"},
            "the authors' repository gydpku/OCM 7be9dfe, test_cifar100.py: Adam 1e-3, betas 0.9 "
            "and 0.99, decay 1e-4, batch 10, replay 64, temperature 0.07, a = 1, as in the common "
            "setting; flips, greys (0.25) and crops (area 0.3-1)",
        )
    }

    def check_settings(self) -> None:
        super().check_settings()
        require(self, "temperature", self.temperature > 0, "positive")
        require(self, "scale", self.scale > 0, "positive")
        require(self, "strength", self.strength >= 0, "zero or more")
        require(self, "rotations", 1 <= self.rotations <= MAPS, f"between 1 and {MAPS}")

    def build(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().build(shape, dtype)
        self.previous = PreviousNetwork(self.trainer)  # taken anew at every boundary

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        return {"projection": build(lambda: nn.Linear(features, min(PROJECTED, features)), rng)}

    def cost(self, batch: int) -> ImageCount:
        contrasted = VIEWS * self.maps * (batch + self.replay)
        times = self.views_per_sample
        taught = (self.maps + 1) * self.replay
        return ImageCount(trained=(contrasted + self.replay) * times, scored=taught * times)

    def teacher_images(self, batch: int) -> int:
        return self.replay * self.views_per_sample  # all others have no logits

    @property
    def maps(self) -> int:
        """How many images, turned, each image becomes."""
        if not self._prepared:
            return self.rotations
        blank = torch.zeros(
            1, *self.trainer.shape, dtype=self.trainer.dtype, device=self.trainer.torch_device
        )
        return min(self.rotations, maps_of(self.views.normalise(blank).shape))

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new                                       (b)
        terms, out = self.information(stream)
        if out is None:
            (out,) = self.forward(stream)  # logits                                   (b, C)
        terms["labels"] = cross_entropy(out, among=self.seen)  # of X^new, later of X^buf
        loss = torch.stack(list(terms.values())).sum()

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, out, **terms)

    def information(self, stream: Samples) -> tuple[dict[str, Tensor], Output | None]:
        """All of L but the cross-entropy, term by term, and the logits of X^buf; in the first task
        (asked on the host: a step is captured anew when that ends) there are none."""
        if not self.task:
            (new,) = self.embedded([stream], [self.turns(stream)])
            return {"L_n": stream_contrast(new)}, None

        replay = self.drawn(stream)  # X^buf                                          (r)
        turns = [self.turns(batch) for batch in (stream, replay)]  # R(X)        (R b) (R r)
        new, held = self.embedded([stream, replay], turns)
        (out,) = self.forward(replay)  # o of an augmented view                       (r, C)
        past, taught = self.previously(turns[1], self.views(replay.x))  # z', o'  (R r, d) (r, C)
        to_past = held._replace(z=held.z[:1] / self.scale, key=past.view_as(held.key[:1]))
        return {
            "L_n": stream_contrast(new),
            "L_u": class_contrast(held),
            "L_p": class_contrast(to_past),
            "logits": self.strength * squared_error(out, taught, self.previous.known),
        }, out

    def drawn(self, stream: Samples) -> Samples:
        """X^buf: while few classes are known, only the first of it counts."""
        replay = self.store.draw(self.replay, fallback=stream)
        counts = (
            torch.arange(self.replay, device=self.trainer.torch_device)
            < PER_CLASS * self.seen.sum()
        )
        return replay._replace(weight=replay.weight * counts)

    def turns(self, samples: Samples) -> Tensor:
        """R(X), map by map, (R n, c, h, w)."""
        inputs = self.views.plain(samples.x)
        return turned(inputs, min(self.rotations, maps_of(inputs.shape)))

    def embedded(self, batches: list[Samples], turns: list[Tensor]) -> list[Embedded]:
        """Both views of R(X) of each batch, from one forward of all."""
        plain = torch.cat(turns)
        features = self.model.features(torch.cat([plain, self.views.augmented(plain)]))
        z = project(self.model, features)
        f = F.normalize(features.float())
        sizes, (width, all_of_f) = [len(one) for one in turns], (z.shape[1], f.shape[1])
        starts = torch.randint(
            max(1, all_of_f - width),
            (len(batches), 1),
            generator=self.trainer.rngs["draws"],
            device=self.trainer.torch_device,
        )
        window = torch.arange(width, device=self.trainer.torch_device)
        windows = starts + window  # of f, a row for each batch
        made = []
        for batch, window, z_b, f_b in zip(
            batches,
            windows,
            torch.split(z.view(VIEWS, -1, width), sizes, dim=1),
            torch.split(f.view(VIEWS, -1, all_of_f), sizes, dim=1),
            strict=True,
        ):
            y, weight = (part.repeat(self.views_per_sample) for part in batch[1:])
            shape = (VIEWS, -1, len(y), width)  # (views, R, n, d)
            key = z_b + f_b.index_select(2, window)  # u + z
            scaled = z_b * (self.scale / self.temperature)
            made.append(Embedded(scaled.view(shape), key.view(shape), y, weight))
        return made

    @torch.no_grad()
    def previously(self, turns: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        """z' of R(X^buf), and o' of views of it, from one forward of the previous network."""
        model = self.previous.model
        features = model.features(torch.cat([turns, views]))
        of_turns, of_views = torch.split(features, [len(turns), len(views)])
        return project(model, of_turns), model.on(model.head, of_views)
