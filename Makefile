# Every target prepares .venv by itself; a bare Python >= 3.11 is all it needs.
#   make demo    see the method at work          make lint    style, types, import contracts
#   make test    the whole test suite            make docs    build the documentation into build/docs
#   make bench   measure speed                   make web     build the page of the dashboard (needs npm)
#   make fuzz    messages to break a peer        make clean   remove the environment and every cache
#   DADA_RAY=1 make test    tests on a Ray cluster too
#   make soak    two million events of simulated networks with every fault
#   make attack  attacks on real peers of this machine, beside their bounds
#   make mutants which of many broken peers the simulation detects
#   make pins    the bits of every way of running, as on the processor that stored them
# ARGS reaches the command: make demo ARGS=--json, make test ARGS="tests/core -k graph".

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

bin := .venv/bin
pip := $(bin)/python -m pip --disable-pip-version-check --quiet

.PHONY: help demo soak attack mutants pins bench test lint format docs fuzz fuzz-wire web constraints clean
.NOTPARALLEL:

help:
	@sed -n 's/^#   */  /p' Makefile

demo: .venv/.base
	@$(bin)/dada demo $(ARGS)

soak: .venv/.base
	@$(bin)/python benchmarks/soak.py --jobs $(WORKERS) $(ARGS)

attack: .venv/.dev
	@$(bin)/python -m benchmarks.attack $(ARGS)

mutants: .venv/.dev
	@$(bin)/python benchmarks/mutants.py $(ARGS)

# Processors with AVX-512 add in another order, unless they are told to work like those that stored the pins.
pins: .venv/.dev
	@OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR" \
		$(bin)/python -m pytest -q -n $(WORKERS) tests/pins $(ARGS)

bench: .venv/.base
	@$(bin)/dada bench $(ARGS)
	@test -n "$(ARGS)" || $(bin)/python benchmarks/numpy_reference.py
	@test -n "$(ARGS)" || $(bin)/python benchmarks/scale.py --threads $(WORKERS)
	@test -n "$(ARGS)" || $(bin)/python benchmarks/convergence.py
	@test -n "$(ARGS)" || $(bin)/python benchmarks/gossip.py --users 100 --users 1000

test: .venv/.dev
	@$(bin)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: .venv/.dev
	@$(bin)/python -m ruff check
	@$(bin)/python -m ruff format --check
	@$(bin)/python -m mypy
	@$(bin)/lint-imports --no-logo

format: .venv/.dev
	@$(bin)/python -m ruff check --fix
	@$(bin)/python -m ruff format

docs: .venv/.docs
	@NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --quiet --strict --site-dir build/docs $(ARGS)

web:
	@cd web && npm ci && npm test && npm run build

fuzz: .venv/.dev
	@$(bin)/python -m tests.helpers.peer_fuzz $(or $(ARGS),200000)

# Atheris is no part of the development tools: it has wheels for few systems.
fuzz-wire: .venv/.dev
	@$(bin)/python -c 'import atheris' 2>/dev/null || $(pip) install atheris
	@mkdir -p .venv/corpus && cp tests/peer/corpus/* .venv/corpus
	@$(bin)/python -m tests.helpers.wire_fuzz .venv/corpus $(or $(ARGS),60)

# The pins are those of a fresh environment of the oldest supported Python.
constraints:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "constraints need Python 3.11: set PYTHON")'
	@rm -rf .venv/constraints
	@$(PYTHON) -m venv .venv/constraints
	@.venv/constraints/bin/python -m pip --disable-pip-version-check --quiet install ".[dev,docs]"
	@.venv/constraints/bin/python -m pip --disable-pip-version-check freeze --exclude dada-learn > .venv/constraints/pins
	@mv .venv/constraints/pins constraints.txt
	@rm -rf .venv/constraints
	@git --no-pager diff --stat -- constraints.txt

clean:
	@rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: set PYTHON")'
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv

.venv/.base: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing dada into .venv (once; a minute or so)"
	@$(pip) install -c constraints.txt -e ".[dashboard]"
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing dada and its development tools into .venv (once; a minute or two)"
	@$(pip) install -c constraints.txt -e ".[dev]"
	@touch .venv/.base $@

.venv/.docs: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing what the documentation is built with into .venv (once)"
	@$(pip) install -c constraints.txt -e ".[dashboard,docs]"
	@touch $@
