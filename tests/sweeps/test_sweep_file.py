"""Sweep files: their runs, the order of these, and errors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from onepass.base.errors import OnepassError
from onepass.gsa_paper.published import published_values
from onepass.learning import registry
from onepass.runs.spec import Job
from onepass.sweeps.sweep_file import PlannedRun, read_sweep_file, without_repeats

ROOT = Path(__file__).parents[2]


def planned(tmp_path: Path, text: str) -> list[PlannedRun]:
    file = tmp_path / "a.toml"
    file.write_text(text)
    return read_sweep_file(file, device="cpu")


def jobs(tmp_path: Path, text: str) -> list[Job]:
    return [run.job for run in planned(tmp_path, text)]


def test_lists_make_a_grid_and_all_of_a_seed_come_before_the_next(tmp_path: Path) -> None:
    found = jobs(
        tmp_path,
        """
        [defaults]
        methods = ["er", "gsa"]
        memory = [20, 50]
        seed = 3
        seeds = 2
        """,
    )
    assert found == [
        Job(method, memory=memory, seed=seed, device="cpu")
        for seed in (3, 4)
        for method in ("er", "gsa")
        for memory in (20, 50)
    ]


def test_more_specific_tables_override_others_and_settings_do_so_one_by_one(tmp_path: Path) -> None:
    er, gsa, tuned = jobs(
        tmp_path,
        """
        [defaults]
        memory = 10
        batch = 5
        set = { lr = 0.1, gap = 3 }
        [dataset.digits]
        memory = 20
        [method.gsa]
        memory = 30
        set = { lr = 0.2 }
        [[grid]]
        methods = ["er", "gsa"]
        [[grid]]
        methods = "gsa"
        batch = 7
        set = { gap = 9 }
        """,
    )
    assert er == Job("er", memory=20, batch=5, settings={"lr": "0.1", "gap": "3"}, device="cpu")
    assert (gsa.memory, gsa.batch, gsa.settings) == (30, 5, {"lr": "0.2", "gap": "3"})
    assert (tuned.memory, tuned.batch, tuned.settings) == (30, 7, {"lr": "0.2", "gap": "9"})


def test_every_option_of_run_can_be_in_a_sweep_file(tmp_path: Path) -> None:
    (job,) = jobs(
        tmp_path,
        """
        [defaults]
        methods = ["gsa"]
        dataset = "synthetic"
        normalise = "first-task"
        stream = "long-tail:rho=10"
        tasks = 2
        class-order = "shuffled"
        validation = 0.1
        every = 5
        prequential = true
        probe = ["balance"]
        precision = "bf16"
        threads = 2
        deterministic = true
        set = { mirror = true, fill = "none", mean = "(0.5,)" }
        """,
    )
    settings = {"mirror": "true", "fill": "none", "mean": "(0.5,)", "precision": "bf16"}
    assert job == Job(
        "gsa",
        "synthetic",
        normalise="first-task",
        stream="long-tail:rho=10",
        tasks=2,
        class_order="shuffled",
        validation=0.1,
        every=5,
        prequential=True,
        settings=settings,
        threads=2,
        deterministic=True,
        device="cpu",
    )
    assert job.probes == ("balance",)


def test_settings_may_be_lists_and_a_list_of_seeds_is_one(tmp_path: Path) -> None:
    found = jobs(tmp_path, '[defaults]\nmethods = "er"\nseed = [7, 1]\nset = { lr = [0.1, 0.2] }\n')
    assert [(job.seed, job.settings["lr"]) for job in found] == [
        (seed, lr) for seed in (1, 7) for lr in ("0.1", "0.2")
    ]


def test_a_run_of_two_grids_belongs_to_the_first(tmp_path: Path) -> None:
    text = """
    [[grid]]
    methods = ["finetune", "er"]
    memory = [10, 20]
    [[grid]]
    methods = "all"
    memory = 10
    """
    found = without_repeats(planned(tmp_path, text))
    first = [run.job.folder_name for run in found if run.priority == 0]
    assert first == ["finetune-digits-s0", "er-digits-m10-s0", "er-digits-m20-s0"]
    assert len([run for run in found if run.priority == 1]) == len(registry.methods()) - 2


def test_paths_of_data_are_relative_to_the_file(tmp_path: Path) -> None:
    text = '[defaults]\nmethods = "er"\ndataset = "data/mine.npz"\ntest-fraction = 0.5\n'
    text += '[dataset."data/mine.npz"]\nmemory = 7\nmirror-is-another-class = true\n'
    (job,) = jobs(tmp_path, text)
    assert Path(job.dataset) == tmp_path / "data/mine.npz"
    assert (job.memory, job.mirror_is_same_class) == (7, False)
    (job,) = jobs(tmp_path, text.replace("data/mine", "/elsewhere/mine"))
    assert Path(job.dataset) == Path("/elsewhere/mine.npz")
    text = '[defaults]\nmethods = "er"\ndataset = "data/a.csv"\ntest = "b.csv"\nlabel = "kind"\n'
    (job,) = jobs(tmp_path, text)
    assert (Path(str(job.test)), job.label) == (tmp_path / "b.csv", "kind")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods = what\n", ["is not TOML", "line 1"]),
        ("a = " + "[" * 5000, ["is not TOML"]),
        ('[default]\nmethods = "er"', ["'default'", "Did you mean 'defaults'"]),
        ('import = 3\n[defaults]\nmethods = "er"', ["import", "3"]),
        ("[defaults]\nmemory = 3", ["[defaults]", "methods = [...]"]),
        ('methods = "er"', ["methods belongs below [defaults]"]),
        ('[defaults]\nmethods = "er"\nmemroy = 3', ["[defaults]", "'memroy'", "'memory'"]),
        ('[defaults]\nmethods = "er"\nclass_order = "natural"', ["class_order", "'class-order'"]),
        ('[defaults]\nmethods = "er"\nmemory = "x"', ["[defaults] memory", "whole number", "'x'"]),
        ('[defaults]\nmethods = "er"\nmemory = [3, 1.5]', ["[defaults] memory", "1.5"]),
        ('[defaults]\nmethods = "er"\nmemory = []', ["[defaults] memory", "empty list"]),
        ('[defaults]\nmethods = "er"\nmemory = -1', ["[defaults] memory", "at least 0"]),
        ('[defaults]\nmethods = "er"\nseeds = [1, 2]', ["[defaults] seeds", "whole number"]),
        ('[defaults]\nmethods = "er"\nseeds = 100000', ["[defaults] seeds", "at most 1000"]),
        ('[defaults]\nmethods = "er"\nmemory = 9223372036854775808', ["[defaults] memory"]),
        ('[defaults]\nmethods = ["er", "gsaa"]', ["gsaa", "Did you mean 'gsa'"]),
        ('[defaults]\nmethods = "er"\ndataset = "digit"', ["'digit'", "'digits'"]),
        ('[defaults]\nmethods = "er"\npreset = "official"', ["er on digits", "'official'"]),
        ('[defaults]\nmethods = "er"\nset = { lrr = 1 }', ["er on digits", "'lrr'", "'lr'"]),
        ('[defaults]\nmethods = "er"\nset = { lr = "x" }', ["er on digits", "lr must be"]),
        ('[defaults]\nmethods = "er"\nset = { lr = [] }', ["set.lr", "empty list"]),
        ('[defaults]\nmethods = "er"\nset = { lr = { a = 1 } }', ["set.lr"]),
        ('[defaults]\nmethods = "er"\nset = { seed = 1 }', ["seed"]),
        ('[defaults]\nmethods = "er"\nset = 3', ["[defaults] set"]),
        ('[defaults]\nmethods = "er"\nprobe = "what"', ["'what'", "probe"]),
        ('[defaults]\nmethods = "er"\nstream = "long-tail:rh=1"', ["er on digits", "'rh'"]),
        ('[defaults]\nmethods = "er"\nclass-order = "odd"', ["class-order", "natural or shuffled"]),
        ('[defaults]\nmethods = "er"\nprecision = "bf16"\nset.precision = "bf16"', ["precision"]),
        ('[method.err]\nlr = 1\n[defaults]\nmethods = "er"', ["[method.err]", "'er'"]),
        ('[method.er]\nmethods = "er"\n[defaults]\nmethods = "er"', ["[method.er]", "'methods'"]),
        ('[dataset.digit]\n[defaults]\nmethods = "er"', ["[dataset.digit]", "'digits'"]),
        ('dataset = "digits"\n[defaults]\nmethods = "er"', ["[dataset]", "table"]),
        ('grid = 3\n[defaults]\nmethods = "er"', ["[[grid]]", "list of tables"]),
        ('grid = []\n[defaults]\nmethods = "er"', ["no [[grid]]"]),
        ('[[grid]]\nmethods = "er"\n[[grid]]\nmemroy = 1', ["[[grid]] 2", "'memroy'"]),
        (
            f'[defaults]\nmethods = "er"\nseeds = 1000\nmemory = {list(range(200))}',
            ["[defaults]", "more than 100000 runs"],
        ),
    ],
)
def test_every_error_is_one_line_with_the_file_and_the_key(
    text: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(OnepassError) as refused:
        planned(tmp_path, text)
    message = str(refused.value)
    assert "\n" not in message
    assert all(word in message for word in [str(tmp_path / "a.toml"), *words]), message


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(OnepassError, match=str(path)):
            read_sweep_file(path)


def test_the_papers_table_is_complete() -> None:
    """It has 15 seeds of every cell whose method onepass has, and no other cells."""
    found = without_repeats(read_sweep_file(ROOT / "experiments/table1.toml", device="cpu"))
    cells = Counter((run.job.method, run.job.dataset, run.job.memory) for run in found)
    known = {info.key for info in registry.methods()}
    wanted = {
        (value.method, value.dataset, value.memory)
        for value in published_values()
        if value.source == "gsa-paper-table1"
        and value.metric == "accuracy"
        and value.method in known
    }
    assert len(wanted) == 17 * 12
    assert {cells[cell] for cell in wanted} == {15}
    others = {method for method, *_ in cells.keys() - wanted}
    assert others == {"gsa-released", "er-ace", "ocm", "ocm-gsa", "finetune", "joint"}


def test_the_papers_table_has_one_seed_of_every_cell_before_a_second_of_any() -> None:
    found = without_repeats(read_sweep_file(ROOT / "experiments/table1.toml", device="cpu"))
    second = next(number for number, run in enumerate(found) if run.job.seed == 1)
    first = Counter((run.job.method, run.job.dataset, run.job.memory) for run in found[:second])
    assert set(first.values()) == {1}
    printed = [value for value in published_values() if value.metric == "accuracy"]
    methods = {value.method for value in printed if value.dataset == "mnist"}
    sizes = {"cifar100": (1000, 2000, 5000), "cifar10": (200, 500, 1000), "mnist": (100, 500, 1000)}
    wanted = {
        (method, dataset, memory)
        for method in methods - {"ocm", "ocm-gsa"}
        for dataset, memories in sizes.items()
        for memory in memories
    }
    wanted |= {(method, "tiny-imagenet", 4000) for method in ("er", "gsa", "scr", "derpp")}
    wanted |= {("ocm", "cifar100", memory) for memory in (1000, 5000)}
    assert set(first) == wanted
    assert len(wanted) == 17 * 9 + 6


def test_the_small_example_can_be_read() -> None:
    assert len(without_repeats(read_sweep_file(ROOT / "experiments/digits.toml"))) == 36
