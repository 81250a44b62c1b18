.PHONY: setup demo test test-slow records docs dist clean

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e

setup: .venv/installed  ## make .venv and install the library with its command

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[cli,data,plot,serve]"
	touch $@

.venv/developer-tools: .venv/installed
	$(INSTALL) ".[dev]"
	touch $@

.venv/dist-tools: .venv/installed
	$(INSTALL) ".[dist]"
	touch $@

demo: setup  ## train a small network on digits and use it three ways: about a minute
	$(BIN)/anytime demo

test: .venv/developer-tools  ## what CI runs: style, types, tests, doctests and the documents' code blocks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

test-slow: .venv/developer-tools .venv/dist-tools  ## the long tests: 50 kills of a training run, and the like
	$(BIN)/pytest -m slow

DATA ?= cifar10
records: .venv/developer-tools  ## measure again what README.md and PERFORMANCE.md say, where its code has changed; goes on where it stopped
	$(BIN)/python docs/figures.py renew --data $(DATA)

dist: .venv/dist-tools  ## wheel and sdist in dist/, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

.venv/docs-tools: .venv/installed
	$(INSTALL) ".[docs]"
	touch $@

docs: .venv/docs-tools  ## the documentation site, in site/; strict: a broken link fails
	$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv dist site .pytest_cache .ruff_cache .hypothesis
