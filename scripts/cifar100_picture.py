"""Draws docs/cifar100.png: the accuracy of every method on CIFAR100 with 1000 stored samples.

The numbers come from the lines in results/lines/. Each preset (common, official, tuned, best) has a
bar, each run a dot, and the published accuracy a diamond. A method whose `tuned` or `best` has not
been run says so beside its bars, and so does one that was changed and has not been run since.

python scripts/cifar100_picture.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from onepass.gsa_paper.protocol import learning_variant
from onepass.gsa_paper.published import values_for_cell, with_sources
from onepass.learning import registry
from onepass.runs import lines
from onepass.runs.spec import preset_names

RESULTS = Path(__file__).parents[1] / "results" / "lines"
FILES = ("ablations", "table1", "cifar100", "baselines", "baselines-2", "best", "recipe")
PRESETS = {
    "official": "its authors' settings",
    "tuned": "tuned on held-out data",
    "best": "the whole recipe (preset best)",
}
COLOURS = {"common": "#4878a8", "official": "#e1923e", "tuned": "#3f8f5b", "best": "#8a4fa3"}


def accuracies_by_preset() -> dict[str, dict[str, list[float]]]:
    """Returns the accuracies by method and preset.

    They come from the first of FILES that has the method and preset, and there from the latest
    revision. A method has no accuracy if all its runs are of an earlier revision than the present.
    """
    by_method: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for name in FILES:
        here: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for result in lines.read_results(RESULTS / f"{name}.jsonl"):
            chosen = learning_variant(result)
            preset = chosen.get("preset", "common")
            ours = result.dataset == "cifar100" and result.memory == 1000
            if ours and preset in COLOURS and chosen.keys() <= {"preset"}:
                here[result.method, preset][result.revision].append(result.accuracy)
        for (method, preset), revisions in here.items():
            ways = by_method[method]
            # Lines of before revisions were counted have revision 0, today's first revision.
            if max(*revisions, 1) == registry.get(method).revision:
                ways.setdefault(preset, revisions[max(revisions)])
    return by_method


def published(method: str) -> float | None:
    """Returns the published accuracy of a method, None if there is none.

    The GSA paper's figure is preferred to that of the method's own paper.
    """
    text = with_sources(values_for_cell(method, "cifar100", 1000))
    return float(text.split()[0]) if text else None


def waiting(method: str, presets: Collection[str]) -> str:
    """Returns which runs of a method are missing: those of `tuned` and `best`, or all since it was
    changed. Empty if none is."""
    if not presets:
        return "changed, not run since"
    own = preset_names(registry.get(method).learner)
    missing = [name for name in ("tuned", "best") if name in own and name not in presets]
    return f"{' and '.join(missing)} not run yet" if missing else ""


def main() -> None:
    by_method = accuracies_by_preset()
    best = {
        method: max(map(mean, ways.values()), default=0.0) for method, ways in by_method.items()
    }
    methods = sorted(by_method, key=best.__getitem__)
    figure, axes = plt.subplots(figsize=(7, 0.26 * len(methods) + 1.2), layout="constrained")
    for place, method in enumerate(methods):
        ways = by_method[method]
        for preset, accuracies in sorted(ways.items(), key=lambda way: -mean(way[1])):
            axes.barh(place, mean(accuracies), height=0.7, color=COLOURS[preset])
            axes.plot(accuracies, [place] * len(accuracies), ".", color="black", markersize=3)
        figure_of_paper = published(method)
        if figure_of_paper is not None:
            axes.plot(figure_of_paper, place, "D", color="white", markeredgecolor="black")
        beyond = max(map(max, ways.values()), default=figure_of_paper or 0.0) + 1
        text = waiting(method, ways)
        axes.text(beyond, place, text, va="center", fontsize=8, color="0.4")
    for preset, colour in COLOURS.items():
        axes.barh(0, 0, color=colour, label=PRESETS.get(preset, "one setting for all"))
    axes.plot([], [], "D", color="white", markeredgecolor="black", label="published")
    axes.plot([], [], ".", color="black", markersize=3, label="one run each")
    axes.set_yticks(range(len(methods)), methods)
    axes.set_xlabel("accuracy over all 100 classes after one pass, %")
    axes.set_title("CIFAR100 in ten tasks, 1000 images kept", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.13), frameon=False, fontsize=9)
    figure.savefig(Path(__file__).parents[1] / "docs" / "cifar100.png", dpi=110)


if __name__ == "__main__":
    main()
