"""A stream of your own, with a name: the digits fade while they are learned.

The stream is class-incremental, and later training images are darker. Test images do not change. If
you put the class into a module of its own, fading.py, you can use it on the command line too:
`onepass run gsa --stream fading:least=0.2 --import fading`.
"""

from torch import Tensor

import onepass
from onepass import Dataset
from onepass.streams import make_stream, parse_stream, stream


@stream("fading")
class Fading(onepass.ClassIncremental):
    """Tasks of disjoint classes whose training images get darker. The last batch keeps the share
    `least` of their brightness."""

    def __init__(self, dataset: Dataset, tasks: int = 5, least: float = 0.5, seed: int = 0) -> None:
        super().__init__(dataset, tasks=tasks, seed=seed)
        self.least = least

    def change(self, x: Tensor, step: int) -> Tensor:
        """Returns darker images. The share depends on the step alone, so a resumed run gets the
        same images."""
        share = 1 - (1 - self.least) * step / (len(self) - 1)
        return (x * share).to(x.dtype)


data = onepass.load("digits")
fading = make_stream(data, parse_stream("fading:least=0.2"), seed=0)
learner = onepass.GSA(memory=100, seed=0, mean=data.mean, std=data.std)
for point in onepass.evaluate(learner, fading):
    print(f"after task {point.task + 1}: accuracy {point.accuracy:.1f} %")
print(f"the stream in a run's record: {fading.spec}")
