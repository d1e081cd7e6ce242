# Every target sets itself up in .venv.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PIP := install --quiet --disable-pip-version-check
ARGS ?=
# gpu-check only: another Python that has torch, to run without an installation.
GPU_PYTHON ?= $(BIN)/python
# A folder of wheels: gpu-wheels fills it, gpu-check installs from it, without network.
GPU_WHEELS ?=

export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PYTHONWARNINGS := ignore::FutureWarning

.PHONY: demo test test-fast soak gpu-check gpu-wheels lint slurm legacy constraints coverage

# From text to report on this machine: demo/report.md. Smaller: make demo ARGS=--quick
demo: .venv/core
	@$(BIN)/python pipeline/demo.py $(ARGS)

# Lint, types and the whole suite, quick tests first.
test: lint slurm test-fast
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25 -m "slow and not soak and not gpu"

# The quick tests.
test-fast: .venv/dev
	$(BIN)/pytest -n 2 -m "not slow and not soak and not gpu"

# Slurm for tests/slurm, if this user may install it; otherwise those tests are skipped.
slurm:
	@bash tests/slurm/install.sh

# The long tests: many kills, whole books.
soak: .venv/dev legacy
	$(BIN)/pytest -m soak

# BLANC and LSG need an older transformers: the core once more, in a separate environment.
legacy: .venv-legacy/made

# Correctness, training and speed on a GPU, under 8 minutes, no network: gpu-check/gpu_check.json.
gpu-check: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),.venv/core)
ifneq ($(GPU_WHEELS),)
	rm -rf gpu-check/packages
	$(GPU_PYTHON) -m pip $(PIP) --no-index --no-deps --target gpu-check/packages $(GPU_WHEELS)/*.whl
endif
	$(if $(GPU_WHEELS),PYTHONPATH=$(CURDIR)/gpu-check/packages )$(GPU_PYTHON) pipeline/benchmark.py gpu --output gpu-check $(ARGS)

# What training needs beyond torch, for this Python and platform, as wheels in GPU_WHEELS.
gpu-wheels: .venv/core
	@test -n "$(GPU_WHEELS)" || { echo "error: give GPU_WHEELS=DIR, a folder for the wheels" >&2; exit 2; }
	mkdir -p $(GPU_WHEELS)
	$(BIN)/python .ci/training_packages.py > $(GPU_WHEELS)/packages.txt
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(GPU_WHEELS) -r $(GPU_WHEELS)/packages.txt

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Line coverage by the whole suite, processes it starts included, as a table by folder.
coverage: .venv/dev slurm
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not soak and not gpu" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o - | $(BIN)/python .ci/coverage_by_room.py

# Pin the newest versions that requirements*.txt allow: constraints.txt. Packages that need a newer
# Python than the oldest supported one are pinned for PYTHON and newer: use an old one.
constraints:
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/pip $(PIP) -r requirements-dev.txt
	.venv-constraints/bin/python .ci/constraints.py > constraints.txt.new
	mv constraints.txt.new constraints.txt
	rm -r .venv-constraints

.venv/core: requirements.txt constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: $(PYTHON) is older than 3.10; make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip $(PIP) -c constraints.txt -e .
	@touch $@

.venv/dev: .venv/core requirements-dev.txt requirements-extras.txt requirements-stores.txt
	$(BIN)/pip $(PIP) -c constraints.txt -r requirements-dev.txt
	@touch $@

.venv-legacy/made: requirements-legacy.txt requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' || \
		{ echo "error: BLANC and LSG need Python 3.10 to 3.12; make PYTHON=python3.12 legacy" >&2; exit 2; }
	$(PYTHON) -m venv .venv-legacy
	.venv-legacy/bin/pip $(PIP) -r requirements-legacy.txt
	.venv-legacy/bin/pip $(PIP) --no-deps blanc==0.3.4
	@touch $@
