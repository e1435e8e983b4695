# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each makes what it needs in .venv by itself, and again when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
NODE_MODULES := tests/interop/node_modules
# Anything for pytest: make test ARGS="-k rdy -x"
ARGS ?=

PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## say what can be made
	@echo "usage: make TARGET"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-11s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(STAMPS)/demo ## publish 336,776 real flights, consume them three times, check every count
	@$(BIN)/python -m examples.flights

.PHONY: test
test: check pytest ## everything that CI runs: check, then all tests

.PHONY: pytest
pytest: $(STAMPS)/dev $(NODE_MODULES)/.stamp
	@echo "==> tests"
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: unit
unit: $(STAMPS)/dev ## the tests that start no process
	@$(BIN)/python -m pytest tests --ignore=tests/e2e --ignore=tests/interop --ignore=tests/spark $(ARGS)

.PHONY: e2e
e2e: $(STAMPS)/dev ## the tests of the daemon as a process
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

.PHONY: interop
interop: $(STAMPS)/dev $(NODE_MODULES)/.stamp ## the tests with clients that others wrote
	@$(BIN)/python -m pytest tests/interop $(ARGS)

.PHONY: spark
spark: $(STAMPS)/dev ## the tests with a Spark session, a cluster and Spark Connect
	@$(BIN)/python -m pytest tests/spark $(ARGS)

.PHONY: bench
bench: $(STAMPS)/demo ## measure the daemon against the least possible server, by turns: two minutes
	@$(BIN)/python -m benchmarks.compare $(ARGS)

.PHONY: sim
sim: $(STAMPS)/dev ## simulate SEEDS=1000 daemons on disks that misbehave
	@$(BIN)/python -m tests.sim --seeds=$(or $(SEEDS),1000)

# How often the daemon is killed, and what the moments are drawn from: make chaos KILLS=500 SEED=7
KILLS ?= 100
SEED ?= 1

.PHONY: chaos
chaos: $(STAMPS)/dev ## kill -9 a busy daemon at random moments, fill its disk, count what is lost
	@$(BIN)/python -m tests.chaos --disk-full
	@$(BIN)/python -m tests.chaos --read-only
	@$(BIN)/python -m tests.chaos --kills=$(KILLS) --seed=$(SEED) $(ARGS)

.PHONY: chaos-spark
chaos-spark: $(STAMPS)/dev ## kill -9 a stream's driver and its daemon at random moments, compare the table
	@$(BIN)/python -m tests.spark.chaos --kills=$(KILLS) --seed=$(SEED) $(ARGS)

.PHONY: check
check: $(STAMPS)/dev ## format, lint and types
	@echo "==> format"
	@$(BIN)/ruff format --check --quiet .
	@echo "==> lint"
	@$(BIN)/ruff check --quiet .
	@echo "==> types"
	@$(BIN)/mypy

.PHONY: format
format: $(STAMPS)/dev ## rewrite the sources in the house's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: docs
docs: $(STAMPS)/dev ## write the generated files: the table of options and the sample configurations
	@$(BIN)/python -m nsqpy.startup > docs/configuration.md.new
	@mv docs/configuration.md.new docs/configuration.md
	@for program in nsqd nsqlookupd; do \
		$(BIN)/nsqpy $$program --sample-config > deploy/$$program.toml.new \
			&& mv deploy/$$program.toml.new deploy/$$program.toml || exit 1; \
	done

.PHONY: lock
lock: $(STAMPS)/dev ## write the installed versions down in constraints.txt
	@$(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable \
		| LC_ALL=C sort > constraints.txt

.PHONY: clean
clean: ## remove everything that was made
	rm -rf $(VENV) $(NODE_MODULES) demo-output build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "nsqpy needs Python 3.11 or later; say which with PYTHON=..."; exit 1; }
	@echo "==> making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS)
	@touch $@

$(STAMPS)/demo: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "==> installing nsqpy and what the demo needs"
	@$(PIP) install --constraint constraints.txt --editable '.[demo,spark]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "==> installing nsqpy and what its tests need"
	@$(PIP) install --constraint constraints.txt --editable '.[demo,dev,spark]'
	@touch $@

$(NODE_MODULES)/.stamp: tests/interop/package.json tests/interop/package-lock.json
	@echo "==> installing the Node client"
	@cd tests/interop && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@
