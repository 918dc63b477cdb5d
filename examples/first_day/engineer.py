"""An engineer's first day: rows of numbers with text labels, learned day by day.

Machines of several customers send readings, and a technician labels the faults. New faults appear
as the days go by. The readings come from an exported .csv; this script makes one up first. Run it
in an empty folder: python engineer.py
"""

import csv
import pickle
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import onepass
from onepass.sklearn import OnePassClassifier

FEATURES = ["current", "vibration", "temperature", "noise", "pressure"]
FAULTS_BY_DAY = [["fine", "belt"], ["fine", "bearing"], ["fine", "leak"], ["fine", "fuse"]]


def export(file: Path) -> None:
    """Writes one row per reading, in place of your own system."""
    rng = np.random.default_rng(0)
    faults = dict.fromkeys(fault for day in FAULTS_BY_DAY for fault in day)
    usual = {fault: rng.normal(50, 10, len(FEATURES)) for fault in faults}
    with file.open("w", newline="") as out:
        lines = csv.writer(out)
        lines.writerow(["day", "customer", *FEATURES, "fault"])
        for day, names in enumerate(FAULTS_BY_DAY, 1):
            for fault in rng.choice(names, 200):
                reading = rng.normal(usual[fault], 3).round(2)
                lines.writerow([day, rng.choice(["north", "south"]), *reading, fault])


def features(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(row[name]) for name in FEATURES] for row in rows])


def labels(rows: list[dict[str, str]]) -> list[str]:
    return [row["fault"] for row in rows]


def main() -> None:
    export(Path("readings.csv"))
    with Path("readings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows, held_out = rows[::2], rows[1::2]

    # The first day fits the Pipeline; the scaler then stays as it is. Pipelines have no
    # partial_fit, so later days go through the two steps one after the other.
    # gap: a new fault begins a new task if five batches of ten rows have brought none. The default
    # of ten batches is a whole day here, so two days would become one task.
    model = make_pipeline(StandardScaler(), OnePassClassifier("gsa", memory=60, gap=5, seed=0))
    scaler, classifier = model
    for day, group in groupby(rows, key=lambda row: row["day"]):
        todays = list(group)
        if day == "1":
            model.fit(features(todays), labels(todays))
        else:
            classifier.partial_fit(scaler.transform(features(todays)), labels(todays))
        tested = [row for row in held_out if row["day"] <= day]
        accuracy = 100 * model.score(features(tested), labels(tested))
        print(f"day {day}: accuracy {accuracy:.1f} % on {', '.join(model.classes_)}")

    # Only the memory keeps rows: 60 of them, after scaling.
    learner = classifier.learner_
    names, counts = np.unique(learner.kept.y, return_counts=True)
    print("kept:", ", ".join(f"{n} of {name}" for name, n in zip(names, counts, strict=True)))

    # A customer leaves. Find their rows in the memory by their values.
    theirs = features([row for row in rows if row["customer"] == "north"])
    theirs = torch.tensor(scaler.transform(theirs), dtype=torch.float32)
    print(learner.forget(where=lambda x, y: (x[:, None] == theirs).all(dim=2).any(dim=1)))

    # Three ways to keep the model: your own pickle of the whole pipeline; a file without code that
    # goes on learning; and a file without any row, to give away.
    Path("pipeline.pickle").write_bytes(pickle.dumps(model))
    learner.save("model.pt")
    learner.save("to-give-away.pt", memory=False)

    x = scaler.transform(features(held_out))
    for file in ("model.pt", "to-give-away.pt"):
        opened = onepass.open(file)
        same = (opened.predict(x) == model.predict(features(held_out))).all()
        print(f"{file} holds {len(opened.kept)} rows and predicts the same: {same}")
    try:
        opened.learn(x[:10], labels(held_out)[:10])
    except onepass.InputError as problem:
        print(f"learning on with the last: {problem}")
    again = pickle.loads(Path("pipeline.pickle").read_bytes())
    print(f"the pipeline, loaded again: {again.score(features(held_out), labels(held_out)):.3f}")


if __name__ == "__main__":
    main()
