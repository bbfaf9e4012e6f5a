# Everything from a fresh clone, with nothing but Python 3.11+ and make:
# the first target that needs it makes .venv out of requirements.lock.

PYTHON ?= python3
PART   ?=
ARGS   ?=
HOURS  ?=
BASE   ?=

# One worker for the shared Spark session, one for drivers and clusters, three for all the rest;
# two cores can carry five, because much of the time tests wait for leases and processes.
WORKERS := -n 5
ROOMS   := $(filter-out __pycache__ support typing,$(patsubst tests/%/,%,$(sort $(wildcard tests/*/))))
TESTS    = $(if $(PART),$(or $(wildcard tests/$(PART)),$(error \
             there is no tests/$(PART): PART is one of $(ROOMS), or a folder in one)))

# uv from PATH, or one of our own in .tools/
UV_VERSION := 0.13.7
UV  := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
BIN := .venv/bin

# The stamp names the Python it was made for: PYTHON=python3.12 makes .venv anew.
PY_TAG := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
READY  := .venv/.ready-$(or $(PY_TAG),none)

# Where this is set, every child process of a test would compile all of our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test fast soak check format bench chaos spec lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## a year of flights on two Spark drivers, killed and paused, and the proof
	@$(BIN)/leasehold demo $(ARGS)

test: $(READY) ## all tests (PART=jobs picks those of a folder, ARGS="-k lease" some)
	@$(BIN)/python -m tests.support.azurite
	@$(BIN)/pytest -q $(WORKERS) $(TESTS) $(ARGS)

fast: $(READY) ## the tests without a server, Spark or a child process (PART and ARGS as above)
	@LEASEHOLD_MAX_SEEDS=25 $(BIN)/pytest -q $(WORKERS) -m "not server and not process and not spark" $(TESTS) $(ARGS)

soak: $(READY) ## the long proof: 10,000 seeds, random kills, 100 faults on Spark (HOURS=n goes on)
	@$(BIN)/python -m tests.support.azurite
	@$(BIN)/python tools/soak.py $(if $(HOURS),--hours $(HOURS)) $(ARGS)

check: $(READY) ## lint, format, types, layers
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## put the code into its format, fix what can be fixed
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(READY) ## all measurements (PART=balance picks one, BASE=COMMIT measures that too)
	@$(BIN)/python -m bench $(PART) $(if $(BASE),--base $(BASE)) $(ARGS)

chaos: $(READY) ## 100 random kills and pauses of Spark drivers and executors, rows counted
	@$(BIN)/python -m bench.chaos $(ARGS)

spec: $(READY) ## each behaviour of docs/spec.md, its tests, passed or not
	@rm -f .spec-report.json
	@$(BIN)/pytest -q $(WORKERS) --no-header -r fE --spec-report .spec-report.json $(ARGS) >&2 || true
	@$(BIN)/python tools/spec_table.py .spec-report.json

lock: $(UV) ## make requirements.lock anew from pyproject.toml
	@$(UV) pip compile pyproject.toml --extra postgres --extra azure --extra metrics --extra spark --extra demo --group dev \
	    --universal --generate-hashes --python-version 3.11 --upgrade --quiet \
	    --custom-compile-command "make lock" -o requirements.lock
	@echo "requirements.lock is new: run 'make check test' before committing it."

clean: ## remove environments, caches and results
	rm -rf .venv .tools build dist .spec-report.json .soak .steady .bench .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml | python-is-new-enough $(UV)
	@echo "Setting up .venv with Python $(PY_TAG) ..." >&2
	@test -x $(BIN)/python -a -n "$(wildcard .venv/.ready-$(PY_TAG))" \
	    || $(UV) venv --quiet --clear --no-python-downloads --python "$$(command -v $(PYTHON))" .venv
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@
	@echo "Ready." >&2

.tools/bin/uv: | python-is-new-enough
	@echo "Installing uv $(UV_VERSION) into .tools ..." >&2
	@$(PYTHON) -m venv .tools || { echo "error: '$(PYTHON) -m venv' failed (on Debian: apt install python3-venv)." >&2; exit 1; }
	@.tools/bin/python -m pip install -qq --disable-pip-version-check uv==$(UV_VERSION)

.PHONY: python-is-new-enough
python-is-new-enough:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "error: Leasehold needs Python 3.11 or newer, and '$(PYTHON)' is $(or $(PY_TAG),not there): try PYTHON=python3.12 make ..." >&2; \
	    exit 1; }
