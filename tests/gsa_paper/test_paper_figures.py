"""The paper's figures, and Proposition 1. `test_claims.py` has the claims that they judge."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from command import onepass
from matplotlib.figure import Figure
from PIL import Image

from onepass.base.errors import InputError
from onepass.executors.serial import Serial
from onepass.gsa_paper import claims, proposition
from onepass.gsa_paper import figures as paper_figures
from onepass.gsa_paper.proposition import DecomposedLoss, decompose
from onepass.gsa_paper.rates import GradientRates
from onepass.report import figures
from onepass.runs.query import find_results as read
from onepass.runs.variant import Variant

SWEEP = """
[defaults]
dataset = "synthetic"
probe = ["balance", "losses", "logits"]

[[grid]]
methods = ["gsa", "joint"]

[[grid]]
methods = "gsa"
set = { weights = "none" }

[[grid]]
methods = "er"
seeds = 2
set = { replay = 10 }
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    (folder / "sweep.toml").write_text(SWEEP)
    out = folder / "runs"
    asked = ("sweep", folder / "sweep.toml", "--out", out, "--checkpoint", "none")
    with pytest.MonkeyPatch.context() as patch:  # in this process, which is faster
        patch.setattr("onepass.executors.choose_executor", lambda *_, **__: Serial())
        done = onepass(*asked, "--device", "cpu")
    assert done.status == 0, done.err
    return out


def rows(text):
    """Returns the cells of a markdown table without its header."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [line.replace("\\|", "/").strip("| ").split(" | ") for line in lines[2:]]


FIGURES = {  # how many observations, of how many kinds of run
    "fig1": (6, 3),
    "fig3": (12, 4),
    "fig7": (4, 1),
    "loss-curves": (2, 3),
    "proposition1": (2, 3),
}


SEVERAL = [pytest.param(what, marks=pytest.mark.slow) for what in FIGURES if what != "fig3"]


@pytest.mark.parametrize("what", ["fig3", *SEVERAL])
def test_a_figure_comes_with_a_line_for_each_observation(what, runs, tmp_path):
    output = tmp_path / "new" / f"{what}.png"
    done = onepass("figure", what, runs, "-o", output)
    assert done.status == 0, done.err
    with Image.open(output) as image:
        image.load()
    beside = output.with_suffix(".md").read_text()
    assert done.out == f"{beside}\n{output}\n"
    found, (count, kinds) = rows(beside), FIGURES[what]
    assert len(found) == count
    assert ("± its standard error" in beside) == (what != "proposition1")
    header = beside.splitlines()[0].strip("| ").split(" | ")
    run_line = {of.split(": ")[0] for of in header[3:] if not of.endswith(": joint")}
    assert run_line == {"synthetic, M=100, adam"}
    for where, _, _, *cells in found:
        assert where[0] in "456" and len(cells) == kinds == len(header) - 3
        for run_line, verdict in (
            cell.strip("*").rsplit(": ", 1) for cell in cells if ": " in cell
        ):
            assert verdict in ("confirmed", "contradicted", "undecided")
            assert any(words in run_line for words in ("samples", "(n=", "(one run"))
        assert {cell for cell in cells if ": " not in cell} <= {"-", "not measured"}


def test_joint_training_shares_the_column_of_the_one_method_beside_it(runs, tmp_path):
    results = read(runs)
    two = [result for result in results if result.method in ("er", "joint")]
    for drawn, columns in ((two, 1), (results, 4)):
        found = paper_figures.fig3(drawn, tmp_path / "fig3.png")
        assert len({observation.runs for observation in found}) == columns
        assert [observation.claim for observation in found].count(claims.FIG3_JOINT.sentence) == 1


def test_joint_training_which_has_no_memory_has_one_column(runs, tmp_path):
    results = read(runs)
    larger = [replace(run, memory=200) for run in results if run.tasks > 1]
    found = paper_figures.fig3([*results, *larger], tmp_path / "fig3.png")
    columns = {
        observation.runs for observation in found if observation.claim == claims.FIG3_JOINT.sentence
    }
    assert columns == {"synthetic, adam: joint"}


OTHERS = "Not the paper's protocol, which is er with"


def test_runs_of_another_kind_than_the_papers_are_named_below_the_verdicts(runs, tmp_path):
    results, output = read(runs), tmp_path / "one.png"
    by_protocol = [run for run in results if run.method == "er"]
    assert OTHERS not in paper_figures.draw_paper_figure("fig1", by_protocol, output)
    adam = "synthetic, M=100, adam:"
    gsa = f"{adam} gsa; {adam} gsa weights=none"
    renamed = [replace(run, method="lwf") for run in by_protocol]
    run_line = f"{OTHERS} replay=10 balanced=none: {gsa}; {adam} lwf replay=10.\n"
    assert run_line in paper_figures.draw_paper_figure("fig1", [*results, *renamed], output)
    run_line = f"{OTHERS} balanced=20: {adam} er replay=10; {gsa}.\n"
    assert run_line in paper_figures.draw_paper_figure("fig3", results, output)


@pytest.fixture
def sheet(monkeypatch):
    """Collects figures instead of saving them."""
    kept = []
    monkeypatch.setattr(paper_figures, "_finish", lambda figure, output: kept.append(figure))

    def panels(what, results):
        paper_figures.PAPER_FIGURES[what][0](results, Path("unused.png"))
        return kept.pop().axes

    return panels


def drawn_as(axes, name):
    (line,) = (line for line in axes.lines if line.get_label() == name)
    return line.get_ydata()


def mean_over(runs, of):
    return np.mean([of(GradientRates(run)) for run in runs], axis=0)


def test_figure_1_shows_pn_and_accuracy_of_a_task_since_it_came(runs, sheet):
    er = [run for run in read(runs) if run.method == "er"]
    rates, accuracies = sheet("fig1", er)
    for task in (0, 3):
        since = mean_over(er, lambda course: course.pn_since(task))  # noqa: B023
        assert drawn_as(rates, f"task {task + 1}") == pytest.approx(since)
        since = mean_over(er, lambda course: course.accuracy_since(task))  # noqa: B023
        assert drawn_as(accuracies, f"task {task + 1}") == pytest.approx(since)


@pytest.mark.parametrize("what", ["fig3", "fig7"])
def test_each_method_has_a_curve_of_its_own_rates(what, runs, sheet):
    axes, *_ = sheet(what, read(runs))
    panel = figures.runs_by_row_name(read(runs))
    order = paper_figures._order(panel)
    for name, group in panel.items():
        rates = mean_over(group, lambda course: [course.ends[-1]["a_pn"][label] for label in order])
        assert drawn_as(axes, name) == pytest.approx(rates)  # ten classes are left as they are


def test_many_classes_are_averaged_over_a_tenth_of_them():
    impulse = np.zeros(100)
    impulse[50] = 11
    averaged = paper_figures._moving_average(impulse)
    assert averaged[45:56] == pytest.approx(1) and averaged.sum() == pytest.approx(11)
    ramp = paper_figures._moving_average(np.arange(100.0))
    assert (ramp[0], ramp[50]) == pytest.approx((2.5, 50))


def test_curves_of_losses_are_those_of_their_batches(runs, sheet):
    er = [run for run in read(runs) if run.method == "er"]
    (axes,) = sheet("loss-curves", er)
    for batch in ("stream", "replay"):
        curves = [[line[batch] for line in claims.task_losses(run)] for run in er]
        assert drawn_as(axes, f"{batch} batch") == pytest.approx(np.mean(curves, axis=0))


def test_proposition_1_shows_both_losses_and_both_gaps(runs, sheet):
    (gsa,) = (
        run for run in read(runs) if run.method == "gsa" and run.variant.get("weights") != "none"
    )
    losses, gaps = sheet("proposition1", [gsa])
    samples = proposition.decompose_run(gsa)
    for place, new in enumerate((True, False)):
        own = [sample for sample in samples if sample.new is new]
        shown = np.asarray(losses.collections[place].get_offsets())
        assert shown == pytest.approx(np.array([(sample.ce, sample.decomposed) for sample in own]))
        shown = np.asarray(gaps.collections[place].get_offsets())
        assert shown == pytest.approx(
            np.array([(sample.gap, sample.decomposed - sample.ce) for sample in own])
        )


def ended(folder):
    lines = (folder / "balance.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["ended"]]


def test_the_numbers_are_those_of_the_run_folders(runs, tmp_path):
    """Recomputes a number from the files alone."""
    shares = []
    for folder in (path.parent for path in runs.glob("er-*/result.json")):
        pairs = [rate for t, line in enumerate(ended(folder)) for rate in line["pn_of_tasks"][:t]]
        assert len(pairs) == 10
        shares.append(np.mean([rate < -1 for rate in pairs]))
    assert len(shares) == 2
    onepass("figure", "fig1", runs, "-o", tmp_path / "one.png")
    header, _, first, *_ = (tmp_path / "one.md").read_text().replace("\\|", "/").split("\n")
    run_line = dict(zip(header.split(" | "), first.split(" | "), strict=True))
    (cell,) = (cell for of, cell in run_line.items() if "er replay=10" in of)
    assert cell.strip("*").startswith(f"{np.mean(shares):.3g} ± ")


def test_a_run_without_its_probe_is_named(runs, tmp_path):
    done = onepass(
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--device",
        "cpu",
        "--out",
        tmp_path,
    )
    assert done.status == 0
    joint = next(runs.glob("joint-*"))
    for what, beside in (("fig1", ()), ("fig3", ()), ("fig3", (joint,))):
        done = onepass("figure", what, tmp_path, *beside, "-o", tmp_path / "one.png")
        assert done.status == 2
        assert "er-synthetic" in done.error and "was run without --probe balance" in done.error
    assert not (tmp_path / "one.png").exists() and not (tmp_path / "one.md").exists()


def test_runs_without_the_probe_are_left_out_and_counted(runs, tmp_path):
    done = onepass(
        "run",
        "er",
        "--preset",
        "common",
        "--dataset",
        "synthetic",
        "--device",
        "cpu",
        "--out",
        tmp_path,
    )
    assert done.status == 0
    both, alone = (
        onepass("figure", "fig1", *folders, "-o", tmp_path / "one.png")
        for folders in ((runs, tmp_path), (runs,))
    )
    run_line = "Left out, because they ran without --probe balance: 1 of 6 runs."
    assert run_line in both.out and "Left out" not in alone.out
    assert both.out.replace(f"{run_line}\n\n", "") == alone.out


def damaged(file, change):
    """Applies `change` to the last line, or to the whole file."""
    text = file.read_text()
    *before, last = text.strip().split("\n") if file.suffix == ".jsonl" else [text]
    content = json.loads(last)
    change(content)
    file.write_text("\n".join([*before, json.dumps(content)]) + "\n")


@pytest.mark.parametrize(
    ("what", "name", "change"),
    [
        ("fig1", "run.json", lambda run_line: run_line.update(stream=[])),
        ("fig3", "balance.jsonl", lambda run_line: run_line.update(p=1)),
        ("fig7", "balance.jsonl", lambda run_line: run_line.update(pn_of_tasks=[])),
        ("fig1", "result.json", lambda run_line: run_line.update(accuracy_matrix=[])),
        ("proposition1", "logits.jsonl", lambda run_line: run_line["batches"][0].pop("logits")),
    ],
)
def test_a_damaged_run_is_named(what, name, change, runs, tmp_path):
    out = Path(shutil.copytree(runs, tmp_path / "runs"))
    folder = next(out.glob("gsa-*-s0"))
    damaged(folder / name, change)
    done = onepass("figure", what, out, "-o", tmp_path / "one.png")
    assert done.status == 2 and f"{folder} is damaged" in done.error
    assert not (tmp_path / "one.png").exists()


def test_runs_on_other_data_of_the_same_name_are_not_compared(runs, tmp_path):
    others = {"dataset_identity": "/other/synthetic", "data_sha256": "f"}
    results = [
        replace(run, **others) if run.settings.get("weights") == "none" else run
        for run in read(runs)
    ]
    with pytest.raises(InputError, match=r"no run of joint training on /?other/synthetic"):
        paper_figures.fig7(results, tmp_path / "fig7.png")


def test_a_method_without_a_softmax_is_left_out_of_proposition_1(runs, tmp_path, monkeypatch):
    found = proposition.decompose_run
    of_gsa = lambda run: found(run) if run.method == "gsa" else []  # noqa: E731
    monkeypatch.setattr(proposition, "decompose_run", of_gsa)
    run_line = paper_figures.proposition1(read(runs), tmp_path / "one.png")
    assert {observation.runs.split(": ")[1] for observation in run_line} == {
        "gsa",
        "gsa weights=none",
    }
    with pytest.raises(InputError, match="er trains no sample by a softmax"):
        er = [run for run in read(runs) if run.method == "er"]
        paper_figures.proposition1(er, tmp_path / "two.png")


def test_a_figure_beside_joint_training_needs_it(runs, tmp_path):
    (only,) = [path.parent for path in runs.glob("er-*-s0-*/result.json")]
    how = "onepass run joint --dataset synthetic --set optimizer=adam --probe balance"
    for what in ("fig3", "fig7"):
        done = onepass("figure", what, only, "-o", tmp_path / "one.png")
        assert done.status == 2 and how in done.error


def copied(runs, folder):
    """Copies the first run of er."""
    (only,) = [path.parent for path in runs.glob("er-*-s0-*/result.json")]
    return Path(shutil.copytree(only, folder / only.name))


def test_a_stream_whose_tasks_share_classes_is_refused(runs, tmp_path):
    """A blurry stream has them; here the record swaps two classes."""
    copy = copied(runs, tmp_path)
    record = copy / "run.json"
    said = json.loads(record.read_text())
    first, *_, last = said["stream"]["classes"]
    first[0], last[0] = last[0], first[0]
    record.write_text(json.dumps(said))
    done = onepass("figure", "fig1", copy, "-o", tmp_path / "one.png")
    assert done.status == 2 and "other tasks than their own" in done.error


def of_seed(seed, variant="", weights="adaptive", tasks=5):
    """Returns the fields of a result that decide which runs belong together."""
    method = "gsa" if tasks > 1 else "joint"
    settings = {"weights": weights} if tasks > 1 else {}
    return SimpleNamespace(
        method=method, seed=seed, variant=Variant.parse(variant), settings=settings, tasks=tasks
    )


def test_runs_with_and_without_the_loss_differ_in_nothing_else():
    """A third variant of gsa in the folder must not count as the full method."""
    joint = [of_seed(seed, tasks=1) for seed in (0, 1)]
    whole, without = of_seed(1), of_seed(1, "weights=none", "none")
    others = [
        of_seed(1, "sampling=random"),
        of_seed(1, "lr=1 weights=none", "none"),
        of_seed(1, "weights=w", "w"),
        of_seed(0),  # has no other with it
    ]
    found = paper_figures._trios([whole, without, *others, *joint])
    assert list(found) == ["gsa"]
    assert [[run.result for run in trio] for trio in found["gsa"]] == [[whole, without, joint[1]]]
    more = [of_seed(0, "lr=1"), of_seed(0, "lr=1 weights=none", "none")]
    assert list(paper_figures._trios([whole, without, *more, *joint])) == ["gsa", "gsa lr=1"]
    with pytest.raises(InputError, match="two runs of joint"):
        paper_figures._trios([whole, without, joint[1], of_seed(1, "lr=1", tasks=1)])


@pytest.mark.parametrize(
    ("of_gsa", "said"),
    [
        ([], "no run of gsa and none of gsa with weights=none"),
        ([of_seed(0)], "no run of gsa with weights=none"),
        ([of_seed(0, "weights=none", "none")], "no run of gsa$"),
        ([of_seed(0), of_seed(1, "weights=none", "none")], "share a seed.* no three runs fit"),
    ],
)
def test_figure_7_says_which_of_its_runs_are_missing(of_gsa, said):
    with pytest.raises(InputError, match=said):
        paper_figures._trios([*of_gsa, of_seed(0, tasks=1), of_seed(1, tasks=1)])


def test_classes_that_arrive_otherwise_in_each_seed_have_no_order(monkeypatch):
    labels = {0: [["0", "1"], ["2"]], 1: [["1", "0"], ["2"]], 2: [["2", "1"], ["0"]]}

    def course(run):
        arrived = [label for group in labels[run.seed] for label in group]
        return SimpleNamespace(labels=labels[run.seed], ends=[{"a_pn": dict.fromkeys(arrived)}])

    monkeypatch.setattr(paper_figures, "GradientRates", course)
    panel = {"gsa": [of_seed(0), of_seed(1)], "joint": [of_seed(2, tasks=1)]}
    assert paper_figures._order(panel) == ["0", "1", "2"]
    with pytest.raises(InputError, match="order of arrival"):
        paper_figures._order({"gsa": [of_seed(0), of_seed(2)]})


def test_a_file_with_other_content_is_not_overwritten(runs, tmp_path):
    page = tmp_path / "README.md"
    page.write_text("# Mine\n")
    done = onepass("figure", "loss-curves", runs, "-o", tmp_path / "README.png")
    assert done.status == 2 and "README.md" in done.error
    assert page.read_text() == "# Mine\n" and list(tmp_path.iterdir()) == [page]


def test_a_damaged_line_of_a_probe_is_named(runs, tmp_path):
    copy = copied(runs, tmp_path)
    whole = copy.joinpath("balance.jsonl").read_text().splitlines(keepends=True)
    for content, said in (
        ("{half", "balance.jsonl is damaged"),
        ('{"task": 0}\n', "balance.jsonl is damaged: a line has no a_pn"),
        ("".join(whole[:-1]), "balance.jsonl has the ends of 4 tasks, and the run had 5"),
    ):
        copy.joinpath("balance.jsonl").write_text(content)
        done = onepass("figure", "fig1", copy, "-o", tmp_path / "one.png")
        assert done.status == 2 and said in done.error


def test_curves_are_drawn_at_their_means_however_low_and_infinity_at_the_edge():
    axes = Figure().subplots()
    curves = [{1: -1.0, 2: -9.0, 3: -2.0}, {1: -1.0, 2: -11.0, 3: -math.inf}]
    paper_figures._band(axes, curves, "0", "task 1", edge=-12.0)
    assert axes.lines[0].get_ydata().tolist() == [-1.0, -10.0, -12.0]


def test_a_long_title_is_no_wider_than_its_panel(tmp_path):
    figure, ((axes,),) = paper_figures._sheet(1, 1)
    chosen = "lr=0.1 optimizer=sgd precision=bf16 replay=10 tasks=20"
    axes.set_title(f"tiny-imagenet, M=1000, sgd: er {chosen}")
    paper_figures._finish(figure, tmp_path / "one.png")
    assert axes.title.get_window_extent().width <= axes.bbox.width


@pytest.mark.parametrize(("last", "ticks"), [(99, {0, 20, 40, 60, 80}), (20, {5, 10, 15, 20})])
def test_ticks_are_where_tasks_of_ten_classes_begin(last, ticks):
    _, ((axes,),) = paper_figures._sheet(1, 1)
    axes.plot([0, last], [0, 1])
    paper_figures._whole_numbers(axes)
    assert ticks <= set(axes.get_xticks())


def test_a_method_has_one_colour_in_all_panels():
    small, large = ("digits", 50, "adam"), ("digits", 200, "adam")
    colours = paper_figures._colours({small: {"er": [], "gsa": []}, large: {"gsa": [], "er": []}})
    assert list(colours) == ["er", "gsa"] and len(set(colours.values())) == 2


def test_the_correlation_in_the_picture_is_the_one_of_the_page(monkeypatch):
    """The mean over seeds differs from the correlation over all their classes together."""
    of_seeds = {0: ([-1.0, -2.0, -3.0], [1, 2, 3]), 1: ([-5.0, -6.0, -7.0], [5, 4, 6])}

    def course(run):
        a_pn, class_accuracy = of_seeds[run.seed]
        return SimpleNamespace(a_pn=a_pn, class_accuracy=class_accuracy)

    monkeypatch.setattr(paper_figures, "GradientRates", course)
    axes = Figure().subplots()
    paper_figures._against_accuracy(axes, {"er": [of_seed(0), of_seed(1)]}, {"er": "red"})
    (text,) = axes.get_legend().get_texts()
    assert text.get_text() == "er: rank correlation -0.75"


# ---- Proposition 1


def test_the_decomposed_loss_of_random_logits_is_above_by_the_closed_form():
    rng = np.random.default_rng(1)
    for _ in range(300):
        classes = int(rng.integers(2, 12))
        logits, new = 8 * rng.normal(size=classes), rng.random(classes) < 0.5
        y = int(rng.integers(classes))
        e, own = np.exp(logits), new == new[y]
        found = decompose(logits.tolist(), y, new.tolist())
        a, b = e[own].sum(), e[~own].sum() + e[y]
        assert found.ce == pytest.approx(-np.log(e[y] / e.sum()), abs=1e-9)
        assert found.decomposed == pytest.approx(-np.log(e[y] / a) - np.log(e[y] / b), abs=1e-9)
        assert found.gap == pytest.approx(found.decomposed - found.ce, rel=1e-6, abs=1e-9)
        assert found.gap >= 0
        if own.sum() == 1 or own.all():
            assert found.gap == 0


def test_logits_that_are_far_apart_have_a_gap_too():
    """A = e^800 and B = e^900: the loss is 900, the decomposed one 1700."""
    found = decompose([0.0, 800.0, 900.0], 0, [True, True, False])
    assert (found.ce, found.decomposed, found.gap) == (900, 1700, 800)


def test_a_gap_that_is_not_the_closed_form_is_seen():
    right = [decompose([1.0, 2.0, 3.0], y, [True, True, False]) for y in range(3)]
    assert verdicts(right) == ["confirmed", "confirmed"]
    below = right[0]._replace(decomposed=right[0].ce - 0.1)
    assert verdicts([*right, below]) == ["contradicted", "contradicted"]
    above = right[0]._replace(decomposed=right[0].decomposed + 0.1)
    assert verdicts([*right, above]) == ["confirmed", "contradicted"]


def test_the_last_bit_of_a_large_loss_contradicts_nothing():
    loss = 1e6
    large = DecomposedLoss(ce=loss, decomposed=math.nextafter(loss, 0), gap=0.0, new=True, task=0)
    assert verdicts([large]) == ["confirmed", "confirmed"]


def verdicts(samples):
    return [observation.verdict for observation in proposition.observations("runs", samples)]


def test_means_of_gaps_leave_out_an_empty_side():
    new, old = (
        decompose([1.0, 2.0, 3.0], y, [True, True, False])._replace(gap=3.0) for y in (0, 2)
    )
    assert new.new and not old.new
    for samples, run_line in (
        (
            [new, old._replace(gap=1.0), old._replace(gap=2.0)],
            "smallest 0, mean 3 (new classes) and 1.5 (old classes); 3 samples",
        ),
        ([new, new], "smallest 1, mean 3 (new classes); 2 samples"),
        ([old, old], "smallest 0, mean 3 (old classes); 2 samples"),
    ):
        assert proposition.observations("runs", samples)[0].found == run_line


def test_padding_is_not_decomposed(monkeypatch):
    batch = {"y": [5, 7], "weight": [1.0, 0.0], "logits": [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]}
    line = {"task": 1, "classes": [7, 5, 6], "new": [6], "batches": [batch]}
    monkeypatch.setattr(proposition, "read_probe_lines", lambda result, probe: [line])
    expected = decompose([1.0, 2.0, 3.0], 1, [False, False, True], task=1)
    assert proposition.decompose_run(None) == [expected]


def test_logged_samples_are_decomposed_with_the_classes_of_their_time(runs):
    folder = next(path.parent for path in runs.glob("gsa-*/result.json"))
    lines = [json.loads(line) for line in (folder / "logits.jsonl").read_text().splitlines()]
    count = sum(sum(batch["weight"]) for line in lines for batch in line["batches"])
    samples = proposition.decompose_run(read(Path(folder))[0])
    assert len(samples) == count
    assert all(sample.gap == 0 for sample in samples if sample.task == 0)  # there is no old class
    assert {sample.new for sample in samples if sample.task == 4} == {True, False}
