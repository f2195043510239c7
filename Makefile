# Everything a newcomer needs. Each target does its own set-up, which takes a moment when nothing changed.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.shoal-setup
# The first interpreter that is new enough, unless PYTHON names one.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
ARGS ?=
# Tests run in two processes, each with a share that it gives away when the other is idle; ARGS="-n 0" for one.
TWO := -n 2 --dist worksteal
# They start hundreds of processes, each of which would compile Shoal's source where the environment forbids to keep byte code.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
# Most tests compute for milliseconds what takes seconds to compile. Without LLVM's optimisations, without the slower of XLA's two
# generators of fused code, and in one LLVM module instead of 32 (a third less on one core), that takes a fraction of the time. Processes
# that tests start inherit it. AS_USERS are compiled as runs are: tests of bits, of the precision of formulas, and of what is learnt in
# minutes by slower code.
QUICKLY := XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
AS_USERS := tests/determinism tests/ops tests/scores
# pytest exits with 5 if it runs no test: ARGS may choose tests of one group alone.
NONE := $(if $(ARGS),5,0)

.DEFAULT_GOAL := help
.PHONY: help setup system train test test-slow bench lint format docs constraints clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Make .venv with everything; .venv/bin/shoal is the command
	@true

$(STAMP): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Shoal needs Python 3.11 or newer, and $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>&1 | tail -n 1)." \
		"Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version): about a minute and 2 GB, most of it native environments"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[native,mujoco,optimize,tune,mpi,dev]'
	@touch $@
	@echo "ready: $(BIN)/shoal"

train: setup ## Train LunarLander-v3 until it is solved, evaluate it, write the report
	@$(BIN)/shoal train LunarLander-v3 --until-return 200 $(ARGS)

system: ## Install what is not Python and a test needs: ngspice and PostgreSQL, if they are missing and we may
	@missing="$$(command -v ngspice >/dev/null || echo ngspice)"; \
	command -v initdb /usr/lib/postgresql/*/bin/initdb >/dev/null || missing="$$missing postgresql"; \
	test -z "$$missing" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && { \
		apt-get install -qq -y --no-install-recommends $$missing >/dev/null 2>&1 \
		|| { apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends $$missing >/dev/null; }; }; } \
		|| echo "missing and not installed: $$missing; their tests are left out (in CI they fail)" >&2

test: lint system ## Lint, type-check and run the tests (minutes)
	@$(QUICKLY) $(PYTEST) tests $(AS_USERS:%=--ignore %) -m "not slow or ci" $(TWO) $(ARGS) || test $$? = $(NONE)
	@$(PYTEST) $(AS_USERS) -m "not slow or ci" $(TWO) $(ARGS) || test $$? = $(NONE)

test-slow: setup ## Run the slow tests too: learning thresholds, the full product of axes
	@$(PYTEST) tests $(TWO) $(ARGS)

bench: setup ## Measure Shoal and its peers side by side (half an hour; ARGS="--quick" for less)
	@$(BIN)/python benchmarks/run.py $(ARGS)

lint: setup ## ruff, mypy --strict, import rules
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "some files are not formatted: make format" >&2; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null >$(VENV)/imports.log || { cat $(VENV)/imports.log >&2; exit 1; }
	@tail -n 1 $(VENV)/imports.log

format: setup ## Format the code and sort imports
	@$(BIN)/ruff check --quiet --fix . && $(BIN)/ruff format .

docs: setup ## Check that every link, anchor and command in the documentation holds
	@$(BIN)/python docs/check.py

constraints: setup ## Rewrite constraints.txt from what .venv holds
	@{ head -n 1 constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$$'; \
		sed -n '/^# extras/,$$p' constraints.txt; } > constraints.txt.new && mv constraints.txt.new constraints.txt

clean: ## Remove what can be made again (not runs/)
	@rm -rf $(VENV) benchmarks/.venvs benchmarks/results/tmp build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
