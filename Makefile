# Every target sets itself up in .venv.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# gpu-check only: another Python that has torch, to do without an installation.
GPU_PYTHON ?= $(BIN)/python

export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PYTHONWARNINGS := ignore::FutureWarning

.PHONY: demo test test-fast soak gpu-check lint slurm legacy

# The whole road, from text to report: demo/report.md. Smaller: make demo ARGS=--quick
demo: .venv/core
	@$(BIN)/python pipeline/demo.py $(ARGS)

# Lint, types and the whole suite, quick tests first.
test: lint slurm test-fast
	$(BIN)/pytest --durations=25 -m "slow and not soak and not gpu"

# The part that needs under 3 minutes.
test-fast: .venv/dev
	$(BIN)/pytest -n 2 -m "not slow and not soak and not gpu"

# The Slurm that tests/slurm runs in, where this user may install it; elsewhere they are skipped.
slurm:
	@bash tests/slurm/install.sh

# The long ones: many kills, whole books.
soak: .venv/dev legacy
	$(BIN)/pytest -m soak

# BLANC and LSG need an older transformers: an environment of their own, with the core once more.
legacy: .venv-legacy/made

# Correctness and speed on a GPU, under 8 minutes, no network: gpu-check/gpu_check.json.
gpu-check: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),.venv/core)
	$(GPU_PYTHON) pipeline/benchmark.py gpu --output gpu-check $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/core: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: $(PYTHON) is older than 3.10; make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/dev: .venv/core requirements-dev.txt requirements-extras.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

.venv-legacy/made: requirements-legacy.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || \
		{ echo "error: BLANC and LSG need Python 3.10 to 3.12; make PYTHON=python3.12 legacy" >&2; exit 2; }
	$(PYTHON) -m venv .venv-legacy
	.venv-legacy/bin/pip install --quiet --disable-pip-version-check -r requirements-legacy.txt
	.venv-legacy/bin/pip install --quiet --disable-pip-version-check --no-deps blanc==0.3.4
	@touch $@
