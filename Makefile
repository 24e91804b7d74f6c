# make demo   set everything up and run the main job
# make test   set everything up and run the tests
# make fast   those that are not slow
# make check  lint, types, tests
# make docs   build the documentation into build/site
# make paper  make the tables and figures of the paper again from recorded runs, and docs/results/paper.md
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test fast check docs bench paper clean

$(VENV)/core: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/dev $(VENV)/bench $(VENV)/docs $(VENV)/torch: $(VENV)/%: $(VENV)/core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	@touch $@

demo: $(VENV)/torch
	$(BIN)/whence demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

fast: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/bench
	$(BIN)/python benchmarks/surrogates.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/speed_core.py
	$(BIN)/python benchmarks/measure.py
	$(BIN)/python benchmarks/retraining.py
	$(BIN)/python benchmarks/gradex_speed.py

paper: $(VENV)/bench
	$(BIN)/python experiments/paper

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
