"""Online continual learning by mutual information maximisation (OCM). Every sample is rotated in
sixteen ways and contrasted with all others. The memory is also contrasted with its projections by
the previous network.

Paper: Guo, Liu, Zhao, "Online Continual Learning through Mutual Information Maximization", ICML
2022. R(x) are 16 images of x: each half (left, right) rotated by 180 degrees or not, times four
rotations of the whole. Each map r makes a pseudo-class (y, r). A batch X gives the views I = R(X)
and aug(R(X)). f are the backbone's features and g is a linear projection to 128 numbers; z = g(f) /
|g(f)|. u is a window of 128 numbers of f / |f|, drawn anew for each batch. With s_ij = a (z_i u_j +
z_i z_j) / t:

    l(i, j) = -log [e^{s_ij} / sum_{k in I} e^{s_ik}]            l'(i, j): without k = i
    L_n = E_i l'(i, other view of i) + 2 E_i 1/n_i sum_{j of i's pseudo-class, j != i} l'(i, j)
    L_u = E_i 1/n_i sum_{j of i's pseudo-class} l(i, j)
    L_p = E_i 1/n_i sum_{j of i's pseudo-class} l(i, j)          s_ij = z_i z'_j / t, over R(X) only

n_i is the size of i's pseudo-class, i included. z' is the previous network's projection. X^new is
the stream batch. X^buf is a draw of min(replay, 7 |seen|) samples from the memory, current classes
included. K are the classes that the previous network knew. o are the network's logits of an
augmented view of X^buf. o' are the previous network's logits of another augmented view of X^buf:

    first task    L = E_{X^new} -log p_y + L_n(X^new)
    later         L = E_{X^buf} -log p_y + L_n(X^new) + L_u(X^buf) + L_p(X^buf)
                      + strength E_{X^buf} E_{c in K} (o_c - o'_c)^2

After the first task the stream is trained by contrast alone, and labels are learned from the memory
alone. In short tasks the newest classes are therefore learned late. On the digits, with 29 batches
a task, the errors are on these classes.

The implementation saves work and gives the same numbers. s_ij is one product of z_i and the key u_j
+ z_j. A pseudo-class's mean l is the log of the sum minus z_i times the mean of its keys. So the
large matrix of the memory (2048 x 2048) is read by one log-sum-exp and never masked. All views of
stream and memory share one forward pass, as in the authors' code; the views of X^buf for the logits
have another. The previous network evaluates R(X^buf) and its view for the logits in one pass,
without a graph.

Decisions: with `mirror`, mirror images are further samples. Images that are not square have only
the eight maps that keep their shape. A vector has one map, itself, and its two views are equal,
because nothing is augmented. `rotations` takes the first maps; the first one is the identity. With
a backbone of fewer than 128 features the projection is as wide as the features, and the window is
all of them.
Departures from the authors' code (gydpku/OCM): the softmax runs over the classes seen so far, not
over all classes of the dataset. The previous network is in evaluation mode; theirs stays in
training mode and uses the statistics of the batch. Two things are left out: a sample's own entry,
which is a constant in their L_n, and the 1e-8 inside their logarithms, which cuts off the gradient
of very unlikely pairs. Where 7 |seen| < replay the draw is not smaller; the rest has weight 0,
which BatchNorm sees. a is 1 and strength 1, as for CIFAR100 and TinyImageNet. Their CIFAR10 script
has a = 0.5 after the first task, their MNIST script a = 0.5 and strength 0. The default
augmentation is the protocol's; `augment="crop-grey-flip"` is theirs.
Departures from the paper: the paper has no window, no weights and no squared error. These follow
the code.
Cost: 32 (batch + replay) + replay images, forward and backward, and 17 replay forward through the
previous network; in the first task 33 batch. The similarities of the stream are a matrix of (32
batch)^2 numbers, so the method does not suit batches of hundreds of images. Kept: raw samples and
labels, and the previous network.
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
VIEWS = 2  # R(x) and aug(R(x))
MAPS = 16  # images in R(x)
PER_CLASS = 7  # X^buf has at most 7 |seen| samples


def rotated(images: Tensor, count: int) -> Tensor:
    """Returns R of all images for the first `count` maps, (maps n, c, h, w): the first map of every
    image, then the second of every image, and so on.

    >>> rotated(torch.arange(4.0).view(1, 1, 2, 2), 4).flatten(1).int().tolist()
    [[0, 1, 2, 3], [0, 3, 2, 1], [2, 3, 0, 1], [2, 1, 0, 3]]
    """
    if count == 1:
        return images
    left, right = images.tensor_split(2, dim=3)
    other_left, other_right = (half.flip(2, 3) for half in (left, right))
    halves = [(left, right), (left, other_right), (other_left, other_right), (other_left, right)]
    inner = [torch.cat(pair, dim=3) for pair in halves[:count]]
    stacked = torch.cat(inner)
    by = 1 if images.shape[2] == images.shape[3] else 2  # quarter turns
    turns = [stacked.rot90(turn, (2, 3)) for turn in range(0, 4, by)]
    return torch.cat(turns)[: count * len(images)]


def count_maps(shape: torch.Size) -> int:
    """Returns the number of maps that inputs (n, ...) of this shape have: 16 for square images, 8
    for other images, 1 for vectors."""
    if len(shape) != 4:
        return 1
    return MAPS if shape[2] == shape[3] else MAPS // 2


class EmbeddedViews(NamedTuple):
    """Two views of n samples under R maps. `z` is a z / t of the header, and `key` is u + z, both
    (views, R, n, d). `y` and `weight` (n) are the samples' classes and weights."""

    z: Tensor
    key: Tensor
    y: Tensor
    weight: Tensor


def log_sums(views: EmbeddedViews, *, itself: bool = True) -> Tensor:
    """Returns, for each view i, the log of the sum of e^{s_ik} over all views k of weight 1,
    (views, R, n). With `itself` false the sum leaves out k = i."""
    z, key = views.z.flatten(0, 2), views.key.flatten(0, 2)
    copies = len(key) // len(views.y)
    # if nothing has weight (the user deleted the memory) all stay in, or the sum would be empty
    weight = views.weight + (views.weight.sum() == 0)
    # addmm adds log weight, 0 or -inf, to each column
    similarity = torch.addmm(weight.log().repeat(copies), z, key.T)
    if not itself:
        own = torch.eye(len(z), dtype=torch.bool, device=z.device)
        similarity = similarity.masked_fill(own, -torch.inf)
    return similarity.logsumexp(dim=1).view(views.z.shape[:-1])


def class_similarity(views: EmbeddedViews) -> tuple[Tensor, Tensor]:
    """Returns, for each view i, the mean of s_ij over the views j of its pseudo-class, (views, R,
    n), and the number of these views, (n). Both include i."""
    same = (views.y.unsqueeze(1) == views.y) * views.weight  # (n, n)
    count = len(views.key) * same.sum(dim=1).clamp(min=1)
    keys = same @ views.key.sum(dim=0) / count.unsqueeze(1)  # their mean, (R, n, d)
    return (views.z * keys).sum(dim=-1), count


def mean_of_views(values: Tensor, views: EmbeddedViews) -> Tensor:
    """Returns the mean over the views of samples with weight."""
    return mean(values.flatten(), views.weight.expand_as(values).flatten())


def class_contrast(views: EmbeddedViews) -> Tensor:
    """Returns L_u of the header. If the keys are the previous network's projections, it is L_p."""
    similarity, _ = class_similarity(views)
    return mean_of_views(log_sums(views) - similarity, views)


def stream_contrast(views: EmbeddedViews) -> Tensor:
    """Returns L_n of the header, for the views of the stream batch."""
    sums = log_sums(views, itself=False)
    similarity, count = class_similarity(views)
    with_itself = (views.z * views.key).sum(dim=-1)
    with_other = (views.z * views.key.flip(0)).sum(dim=-1)
    # the mean over all of the pseudo-class, less the share of i itself
    to_class = sums - similarity - (sums - with_itself) / count
    return mean_of_views(sums - with_other + 2 * to_class, views)


def squared_error(out: Output, taught: Tensor, among: Tensor) -> Tensor:
    """Returns the mean of (o - o')^2 over samples and the classes `among` (a mask).

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
        Number of samples in the memory.
    replay
        Number of samples drawn from the memory for each stream batch, but at most 7 times the
        number of classes seen.
    temperature
        Temperature t of the similarities.
    scale
        Factor a of the similarities, except those with the previous network's projections.
    strength
        Weight of the squared error to the previous network's logits.
    rotations
        Number of the 16 maps of an image that are trained; 1: only the image itself.

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
            "and a task of eight batches ends before its classes have a share of it",
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
        self.previous = PreviousNetwork(self.trainer)  # copied at every boundary

    def extra_modules(self, features: int, rng: torch.Generator) -> dict[str, nn.Module]:
        return {"projection": build(lambda: nn.Linear(features, min(PROJECTED, features)), rng)}

    def cost(self, batch: int) -> ImageCount:
        contrasted = VIEWS * self.maps * (batch + self.replay)
        times = self.views_per_sample
        taught = (self.maps + 1) * self.replay
        return ImageCount(trained=(contrasted + self.replay) * times, scored=taught * times)

    def teacher_images(self, batch: int) -> int:
        return self.replay * self.views_per_sample  # the other views have no logits

    @property
    def maps(self) -> int:
        """The number of maps of each sample; before the first batch, the setting `rotations`."""
        if not self._prepared:
            return self.rotations
        blank = torch.zeros(
            1, *self.trainer.shape, dtype=self.trainer.dtype, device=self.trainer.torch_device
        )
        return min(self.rotations, count_maps(self.views.normalise(blank).shape))

    def step(self, x: Tensor, y: Tensor) -> Step:
        stream = Samples.of(x, y)  # X^new              (b)
        terms, out = self.information_terms(stream)
        if out is None:
            (out,) = self.forward(stream)  # logits  (b, C)
        terms["labels"] = cross_entropy(out, among=self.seen)  # of X^new, later of X^buf
        loss = torch.stack(list(terms.values())).sum()

        self.keep(x, y)
        self.descend(loss)
        return Step.of(loss, out, **terms)

    def information_terms(self, stream: Samples) -> tuple[dict[str, Tensor], Output | None]:
        """Returns all terms of L but the cross-entropy, by name, and the output (logits) of X^buf.

        In the first task there is no X^buf, and the output is None. A captured step does not read
        `self.task` again, which is safe: a step is captured anew after the first boundary."""
        if not self.task:
            (new,) = self.embed([stream], [self.rotate(stream)])
            return {"L_n": stream_contrast(new)}, None

        replay = self.draw_replay(stream)  # X^buf                                  (r)
        turns = [self.rotate(batch) for batch in (stream, replay)]  # maps R(X)  (R b) (R r)
        new, held = self.embed([stream, replay], turns)
        (out,) = self.forward(replay)  # logits o of an augmented view           (r, C)
        # z' and o'                                                     (R r, d) (r, C)
        past, taught = self.previous_outputs(turns[1], self.views(replay.x))
        to_past = held._replace(z=held.z[:1] / self.scale, key=past.view_as(held.key[:1]))
        return {
            "L_n": stream_contrast(new),
            "L_u": class_contrast(held),
            "L_p": class_contrast(to_past),
            "logits": self.strength * squared_error(out, taught, self.previous.known),
        }, out

    def draw_replay(self, stream: Samples) -> Samples:
        """Returns X^buf (r). Samples beyond 7 for each class seen have weight 0."""
        replay = self.store.draw(self.replay, fallback=stream)
        counts = (
            torch.arange(self.replay, device=self.trainer.torch_device)
            < PER_CLASS * self.seen.sum()
        )
        return replay._replace(weight=replay.weight * counts)

    def rotate(self, samples: Samples) -> Tensor:
        """Returns the first `rotations` maps of all samples, normalised, (R n, c, h, w): the first
        map of every sample, then the second of every sample, and so on."""
        inputs = self.views.plain(samples.x)
        return rotated(inputs, min(self.rotations, count_maps(inputs.shape)))

    def embed(self, batches: list[Samples], turns: list[Tensor]) -> list[EmbeddedViews]:
        """Returns the embedded views R(X) and aug(R(X)) of each batch X, from one forward pass.
        `turns` has R(X) of each batch."""
        plain = torch.cat(turns)
        features = self.model.features(torch.cat([plain, self.views.augmented(plain)]))
        z = project(self.model, features)
        f = F.normalize(features.float())
        sizes, (width, all_of_f) = [len(batch) for batch in turns], (z.shape[1], f.shape[1])
        starts = torch.randint(
            max(1, all_of_f - width),
            (len(batches), 1),
            generator=self.trainer.rngs["draws"],
            device=self.trainer.torch_device,
        )
        window = torch.arange(width, device=self.trainer.torch_device)
        windows = starts + window  # columns of f, one row for each batch
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
            made.append(EmbeddedViews(scaled.view(shape), key.view(shape), y, weight))
        return made

    @torch.no_grad()
    def previous_outputs(self, turns: Tensor, views: Tensor) -> tuple[Tensor, Tensor]:
        """Returns z' of R(X^buf) and o' of views of X^buf, from one forward pass of the previous
        network."""
        model = self.previous.model
        features = model.features(torch.cat([turns, views]))
        of_turns, of_views = torch.split(features, [len(turns), len(views)])
        return project(model, of_turns), model.on(model.head, of_views)
