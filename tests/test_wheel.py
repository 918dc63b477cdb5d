"""The installed wheel works without the repository: the default job, the paper, and the examples of
a first day.

The first days run in a fresh environment: only the wheel is installed, the home folder is empty,
and no environment variable is inherited. The dependencies (torch and others) come from the folders
of the environment that runs the tests, without its .pth files and thus without the repository.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import browser as browsers
import pytest
from command import Done, onepass

import onepass as package
from onepass.gsa_paper.page import SECTIONS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
NEEDED = ("onepass", "experiments", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
START = """
import sys
sys.path = [path for path in sys.path if path != {root!r}]
from onepass.cli import main
try:
    main()
finally:
    ours = [m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "onepass"]
    assert all(file.startswith({target!r}) for file in ours), ours
"""


def call(*command: object, timeout: float = 300, **options: object) -> Done:
    words = list(map(str, command))
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the wheel from a copy, so that the build leaves nothing in the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in NEEDED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", source)
    done = call(*command)
    assert done.status == 0, done.out + done.err
    (path,) = (source / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def target(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    install = ("install", "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel)
    done = call(sys.executable, "-m", "pip", *install)
    assert done.status == 0, done.err
    return folder


def installed(target: Path, *arguments: object, cwd: Path) -> Done:
    """Runs the installed command line, and checks that no module comes from the repository."""
    start = START.format(root=str(ROOT), target=str(target))
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return call(sys.executable, "-c", start, *arguments, cwd=cwd, env=environment)


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"onepass"}
    packed = {name for name in names if ".dist-info/" not in name}
    source = wheel.parents[1]
    files = {path for path in (source / "onepass").rglob("*") if path.is_file()}
    sweeps = {Path("onepass") / path.relative_to(source) for path in source.glob("experiments/*")}
    assert packed == {str(path.relative_to(source)) for path in files} | set(map(str, sweeps))


def test_the_wheel_is_typed_and_licensed_and_has_its_data(target: Path) -> None:
    assert (target / "onepass/py.typed").exists()
    assert (target / "onepass/gsa_paper/published.csv").stat().st_size > 1000
    assert list(target.glob("onepass-*.dist-info/licenses/LICENSE"))
    (entry,) = target.glob("onepass-*.dist-info/entry_points.txt")
    assert "onepass = onepass.cli:main" in entry.read_text()


def test_the_default_job_runs_from_the_wheel(target: Path, tmp_path: Path) -> None:
    done = installed(target, "run", "gsa", "--device", "cpu", cwd=tmp_path)
    assert done.status == 0, done.err
    assert (tmp_path / "runs/accuracy.png").exists()
    (folder,) = (tmp_path / "runs").glob("gsa-digits-m100-s0-*")  # the digest of its preset
    run = json.loads((folder / "run.json").read_text())
    assert (run["onepass"], run["commit"]) == (package.__version__, None)
    result = json.loads((folder / "result.json").read_text())
    here = onepass("run", "gsa", "--device", "cpu", "--json", "--out", tmp_path / "h").record
    for key in ("accuracy", "params_sha256", "state_sha256"):
        assert result[key] == here[key]
    published = installed(target, "table", "runs", "--against", "published", cwd=tmp_path)
    assert published.status == 0, published.err
    assert "published" in published.out


@pytest.fixture(scope="module")
def guest(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the programs of a fresh environment that has the wheel installed."""
    folder = tmp_path_factory.mktemp("guest")
    done = call(sys.executable, "-m", "venv", "--without-pip", folder)
    assert done.status == 0, done.err
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python")
    done = call(*pip, "install", "--no-deps", "--no-index", wheel)
    assert done.status == 0, done.err
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed))
    return folder / "bin"


def visit(guest: Path, cwd: Path, *command: object, timeout: float = 300) -> Done:
    path = os.pathsep.join([str(guest), "/usr/bin", "/bin"])
    environment = {"PATH": path, "HOME": str(cwd), "OMP_NUM_THREADS": "1"}  # tests run side by side
    return call(*command, timeout=timeout, cwd=cwd, env=environment)


def test_every_table_and_figure_is_made_from_the_wheel(guest: Path, tmp_path: Path) -> None:
    """An idle machine should take at most five minutes."""
    done = visit(guest, tmp_path, "onepass", "paper", "--quick", "--out", "paper", timeout=900)
    assert done.status == 0, done.out + done.err
    page = (tmp_path / "paper/README.md").read_text()
    assert "Not made" not in page
    assert page.count("\n## ") == len(SECTIONS)
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (tmp_path / "paper" / picture).stat().st_size > 10_000
    for table in ("table1", "table2", "table3", "times", "streams"):
        assert {path.suffix for path in tmp_path.glob(f"paper/{table}.*")} == {
            ".md",
            ".tex",
            ".csv",
        }
    again = visit(guest, tmp_path, "onepass", "paper", "--quick", "--out", "paper")
    assert "0 finished" in again.err, again.err
    with browsers.opened() as browser:
        browser.get((tmp_path / "paper/report.html").as_uri())
        assert browsers.console(browser) == []
        headings = [heading.text for heading in browser.find_elements("css selector", "section h2")]
    assert headings[:2] == ["Summary", "Results"]


@pytest.mark.parametrize(
    ("script", "printed", "files"),
    [
        ("engineer.py", ["28 samples removed", "holds 0 rows and predicts the same: True"], []),
        ("researcher/run.sh", ["ok      a saved learner goes on exactly", "focal-er"], ["runs"]),
        ("student.sh", ["photos/0-is-a-5.png\t5"], ["accuracy.png", "sheet.png", "table.tex"]),
    ],
)
def test_a_first_day_with_the_wheel(
    guest: Path, tmp_path: Path, script: str, printed: list[str], files: list[str]
) -> None:
    original = ROOT / "examples/first_day" / script
    day = Path(shutil.copytree(original.parent, tmp_path / "day"))
    found = visit(guest, day, "python", "-c", "import onepass; print(onepass.__file__)")
    assert found.out.startswith(str(guest.parent)), found
    done = visit(guest, day, "python" if original.suffix == ".py" else "bash", original.name)
    assert done.status == 0, done.out + done.err
    assert all(words in done.out for words in printed), done.out
    assert all((day / name).exists() for name in files)
