# `make demo` and `make test` do all the set-up on a machine that has Python >= 3.11, git, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_DIR ?= build/demo

.PHONY: demo test lint unit real clean

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test]'
	touch $@

demo: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/git-infrarsi demo --force $(DEMO_DIR)

test: lint unit real

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.installed-test
	$(BIN)/pytest -n 2 -m "not real and not timing and not gpu"

# Real training and timing run one at a time: they would disturb each other.
real: $(VENV)/.installed-test
	$(BIN)/pytest -m "(real or timing) and not gpu"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache
