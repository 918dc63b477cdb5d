"""Three methods learn float images from torch's own loaders, with one network.

The images are scikit-learn's digits with pixels from 0 to 1, as from torchvision's ToTensor, two
classes at a time. Replace `images` by your own `Dataset`.
"""

from collections.abc import Iterator

import torch
from my_method import FocalER
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Subset, TensorDataset

import onepass

TASKS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
torch.set_num_threads(1)  # more threads slow down a network this small

digits = load_digits()
x = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)  # (n, 1, 8, 8), 0 to 1
y = torch.tensor(digits.target)
images = TensorDataset(x, y)
train, held_out = Subset(images, range(1400)), Subset(images, range(1400, len(images)))


def task(classes: tuple[int, ...]) -> DataLoader:
    chosen = [index for index in range(1400) if int(y[index]) in classes]
    rng = torch.Generator().manual_seed(0)
    return DataLoader(Subset(train, chosen), batch_size=10, shuffle=True, generator=rng)


def stream(learner: onepass.Learner) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields the batches of one loader after another, and marks where a task begins."""
    for classes in TASKS:
        learner.new_task()
        yield from task(classes)


test = DataLoader(held_out, batch_size=200)  # read again at each point
for make in (onepass.ER, FocalER, onepass.GSA):
    learner = make(memory=100, net="my_net:small", mean=(0.3,), std=(0.38,), seed=0)
    points = list(onepass.evaluate(learner, stream(learner), test=test, every=29))
    accuracies = " ".join(f"{point.accuracy:5.1f}" for point in points)
    print(f"{learner.key:9} accuracy on the classes so far, every 29 batches: {accuracies}")
print(f"the last of them: {learner}")
