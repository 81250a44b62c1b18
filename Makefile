.PHONY: setup demo test promise-tools test-promises test-slow tables records docs dist clean

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

.venv/cluster-tools: .venv/developer-tools
	$(INSTALL) ".[cluster]"
	touch $@

promise-tools:  ## browser, Node and headers for test-promises: installed as root on Debian, elsewhere named if missing
	.ci/promise-tools

test-promises: .venv/developer-tools .venv/dist-tools .venv/cluster-tools promise-tools docs  ## what CI runs after test
	OMP_NUM_THREADS=1 $(BIN)/pytest -m promise -n 2 --dist worksteal --durations=0 -rs

test-slow: .venv/developer-tools  ## what CI does not run: 50 kills of a training run, every public model, and the like
	$(BIN)/pytest -m slow

tables: .venv/developer-tools  ## write the documents' tables of models, about an hour
	$(BIN)/pytest --write-tables -m "slow or not slow" -k table tests/conversion tests/export

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
