# Each target installs what it needs into .venv; nothing but Python has to be there.
PYTHON ?= python3
BIN = .venv/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all fuzz lint types imports unit table results clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(INSTALL) torch numpy
	$(INSTALL) -e .
	@touch $@

.venv/.test-installed: .venv/.installed
	$(INSTALL) -e '.[test]' hatchling
	@touch $@

demo: .venv/.installed  ## Learn the digits with GSA: a table and a picture in runs/demo
	$(BIN)/onepass run gsa --out runs/demo --resume

test: lint types imports unit  ## Run all checks, and all tests except the slow ones (minutes)

test-all: .venv/.test-installed  ## Run the slow tests, which seldom fail; run both before a release
	$(BIN)/python -m pytest -n auto -q -m slow

FUZZ_SECONDS ?= 240
fuzz: .venv/.test-installed  ## Run every fuzzer for FUZZ_SECONDS, and print the number of cases
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest -q -s tests/fuzz

lint: .venv/.test-installed  ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.test-installed  ## Check types, strictly
	$(BIN)/mypy

imports: .venv/.test-installed  ## Check that imports go one way
	$(BIN)/lint-imports

unit: .venv/.test-installed  ## Run tests and doctests on all cores
	$(BIN)/python -m pytest -n auto -q -m "not slow"

DIGITS_RUNS = --dataset digits --memory 100 --seeds 5 --jobs auto --out runs/methods
table: .venv/.installed  ## Remake the table and the picture in docs/methods.md (minutes)
	rm -rf runs/methods
	$(BIN)/onepass run finetune er gsa gsa-released joint $(DIGITS_RUNS)
	$(BIN)/onepass figure accuracy runs/methods -o docs/accuracy.png
	$(BIN)/onepass run all $(DIGITS_RUNS) --resume
	$(BIN)/python scripts/update_methods_page.py runs/methods

results: .venv/.installed  ## Remake the tables in results/ from the lines; check the pages' numbers
	$(BIN)/python scripts/update_results.py
	$(BIN)/python scripts/check_numbers.py

clean:  ## Remove the environment, runs and caches
	rm -rf .venv runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
