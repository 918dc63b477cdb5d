"""Prints the structure of one or more trees of this repository, as a Markdown table.

    python benchmarks/structure.py OLD . > structure.md

It counts what a newcomer meets: modules at the package's root, import layers, lines by folder,
names that several modules define, and the functions and modules of ours that `onepass run gsa`
executes (by `sys.setprofile`). It also times `onepass --version`, with the trees in turns.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

ROUNDS = 5
PACKAGE = "onepass"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
EXECUTED = """
import importlib, json, pkgutil, sys, threading
from pathlib import Path
import onepass
for module in pkgutil.walk_packages(onepass.__path__, "onepass."):  # imports do not count
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
top, seen = str(Path(onepass.__file__).parent), set()
def watch(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(top) and not code.co_name.startswith("<"):
        seen.add((code.co_filename[len(top) + 1:], code.co_qualname))
sys.setprofile(watch)
threading.setprofile(watch)
from onepass.cli import main
sys.argv = ["onepass", "run", "gsa", "--out", sys.argv[1], "--device", "cpu"]
try:
    main()
except SystemExit:
    sys.setprofile(None)
print("\\n" + json.dumps(sorted(seen)))
"""
VERSION = "import sys; sys.argv[1:] = ['--version']; from onepass.cli import main; main()"
MODULES = f"""
import atexit, sys
atexit.register(lambda: print(len(sys.modules), 'torch' in sys.modules))
{VERSION}"""


def main(trees: list[Path]) -> None:
    rows: dict[str, list[str]] = defaultdict(list)
    seconds = version_seconds(trees)
    for tree in trees:
        for name, value in {**static(tree), **executed(tree)}.items():
            rows[name].append(value)
        modules, torch = _python(tree, MODULES).split()[-2:]
        with_torch = "with torch" if torch == "True" else "without torch"
        rows["modules that `onepass --version` loads"].append(f"{modules}, {with_torch}")
        rows["seconds of `onepass --version`"].append(f"{median(seconds[tree]):.2f}")
    names = [tree.resolve().name for tree in trees]
    print(f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


def static(tree: Path) -> dict[str, str]:
    """Returns the rows that follow from the source files alone."""
    files = sorted((tree / PACKAGE).rglob("*.py"))
    lines = {file: len(file.read_text().splitlines()) for file in files}
    by_folder: Counter[str] = Counter()
    for file, count in lines.items():
        inside = file.relative_to(tree / PACKAGE).parts
        by_folder[inside[0] if len(inside) > 1 else "(root)"] += count
    largest = ", ".join(f"{name} {count}" for name, count in by_folder.most_common())
    defined, public = repeated(files)
    return {
        "modules at the root": str(len(list((tree / PACKAGE).glob("*.py")))),
        "names in the layers' contract": str(sum(len(layer) for layer in layers(tree))),
        "import layers": str(len(layers(tree))),
        "modules": str(len(files)),
        "lines": str(sum(lines.values())),
        "lines by folder": largest,
        "top-level names defined in several modules": str(defined),
        "public ones among them": str(public),
    }


def layers(tree: Path) -> list[list[str]]:
    """Returns the layers of the first import contract, each as a list of packages."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    found = next(entry["layers"] for entry in contracts if entry["type"] == "layers")
    return [[name.strip() for name in layer.replace(":", "|").split("|")] for layer in found]


def repeated(files: list[Path]) -> tuple[int, int]:
    """Returns how many top-level names several modules define, and how many of these are public."""
    modules: dict[str, set[Path]] = defaultdict(set)
    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, DEFINITIONS):
                modules[node.name].add(file)
    several = [name for name, places in modules.items() if len(places) > 1]
    return len(several), sum(not name.startswith("_") for name in several)


def executed(tree: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        functions = json.loads(_python(tree, EXECUTED, folder).splitlines()[-1])
    modules = {module for module, _ in functions}
    return {"functions that `onepass run gsa` executes": f"{len(functions)} in {len(modules)}"}


def version_seconds(trees: list[Path]) -> dict[Path, list[float]]:
    found: dict[Path, list[float]] = {tree: [] for tree in trees}
    for _ in range(ROUNDS):
        for tree in trees:
            began = time.perf_counter()
            _python(tree, VERSION)
            found[tree].append(time.perf_counter() - began)
    return found


def _python(tree: Path, code: str, *arguments: str) -> str:
    """Runs code with a tree's package, because the working directory comes first on the path."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or [Path()])
