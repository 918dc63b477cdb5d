"""Learns a stream of feature vectors without given task boundaries, and predicts at its end.

The class of a vector is the sensor that sent it. The first two sensors appear one after the other.
The third appears while the first comes back.
"""

import numpy as np

import onepass

rng = np.random.default_rng(0)
centres = rng.normal(size=(3, 8)) * 2
# the sensor of each batch
schedule = [0] * 30 + [1] * 30 + [0, 2] * 30

learner = onepass.GSA(memory=60, seed=0)
for sensor in schedule:
    x = centres[sensor] + rng.normal(size=(10, 8))
    learner.learn(x, [sensor] * 10)

truth = np.repeat([0, 1, 2], 100)
predicted = learner.predict(centres[truth] + rng.normal(size=(300, 8))).cpu().numpy()
print(f"classes {sorted(learner.classes)}, boundaries inferred {learner.task}")
print(f"accuracy {100 * (predicted == truth).mean():.1f} %")
