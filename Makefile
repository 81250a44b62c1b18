.PHONY: setup demo test test-slow clean

PYTHON ?= python3
BIN := .venv/bin

setup: .venv/installed  ## make .venv and install the library, its command and what its tests need

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: setup  ## train a small network on digits with CONST and AdaLoss, and compare: about a minute
	$(BIN)/anytime demo

test: setup  ## what CI runs: style, types, tests, doctests and the documents' code blocks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pytest

test-slow: setup  ## the long tests: 50 kills of a training run, and the like
	$(BIN)/pytest -m slow

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
