"""Small closed-form learners, samples for them, and hypothesis's ways to cut a stream."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

from onepass import NCM, SLDA, KernelLDA, RanPAC, Ridge

LEARNERS = {
    "ncm": NCM,
    "slda": SLDA,
    "ridge": Ridge,
    "ranpac": lambda **more: RanPAC(width=12, **more),
    "kernel-lda": lambda **more: KernelLDA(width=12, **more),
}
FEW = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 10**6)


def made_samples(kind="vectors", n=60, classes=4, seed=0):
    """Returns samples of one kind, and a label for each."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=source)
    if kind == "images":
        x = torch.randint(256, (n, 1, 3, 4), generator=source)
        return (x // (1 + y.view(-1, 1, 1, 1))).to(torch.uint8), y
    d = {"vectors": 33, "short": 3}[kind]
    centres = 2 * torch.randn(classes, d, generator=source, dtype=torch.float32)
    return centres[y] + torch.randn(n, d, generator=source, dtype=torch.float32), y


def learned(learner, x, y, batch=10):
    """Teaches samples in batches; returns the learner."""
    for start in range(0, len(y), batch):
        learner.learn(x[start : start + batch], y[start : start + batch])
    return learner


def expect_same(one, other, x):
    """Fails unless both learners have the same sums, classes, and scores, bit for bit."""
    assert one.sums_sha256() == other.sums_sha256()
    assert one.classes == other.classes
    assert torch.equal(one.scores(x), other.scores(x))


def permutation(count, seed):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
