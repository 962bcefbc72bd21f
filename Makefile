# `make` without a target lists the targets. All files stay inside the checkout: .venv, bench/.venv and peers/node,
# tests/interop/.venv and node.

PYTHON ?= python3
BIN := .venv/bin
# Chosen tests, or options for pytest: make test ARGS="tests/unit -k cron"
ARGS ?=
# Parallel test processes for two cores, each with different files: most tests wait. A single one: make test ARGS="-n 0 …".
TESTERS ?= 4
# The directory whose words `make demo` counts; empty: Python's standard library.
DIR ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup interop lint format types layers bytecode test quick check compiled demo bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Two steps: the demo needs only the project itself.
.venv/.project: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Mainspring needs Python 3.11 or newer; choose one with make PYTHON=…" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.check: .venv/.project
	$(BIN)/python -m pip install --quiet --group check
	@touch $@

setup: .venv/.check ## create .venv with the project and the tools for its checks

interop: ## install the servers and clients of other projects for the tests, and list missing ones
	@tests/interop/setup.sh

PROSE = src tests checks bench examples docs README.md CONTRIBUTING.md CHANGELOG.md

lint: .venv/.check ## ruff: rules and format; and the words that checks/words.toml refuses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m checks.words $(PROSE)

format: .venv/.check ## repair and format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.check ## mypy, strict
	$(BIN)/mypy

layers: .venv/.check ## import-linter: permitted imports between layers; and no circular imports
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m checks.circles src/mainspring

# The order of sets is part of a simulated run: with a fixed hash seed, a failing seed fails on every machine.
# Bytecode is written: the tests start the command a thousand times, and compiling takes a quarter of a start.
PYTEST = PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadfile

test: .venv/.check interop ## set up and run the tests; list the slowest 25
	$(PYTEST) --durations 25 --failed-alone $(ARGS)

# Compiles the tests once, in parallel with the type checker; otherwise each test process compiles them.
bytecode: .venv/.check
	@$(PYTEST) --numprocesses 0 --collect-only --quiet >/dev/null || true

# Conformance of memory and SQLite alone, and 50 seeds of a simulated node.
QUICK = tests/unit tests/docs tests/conformance --ignore-glob='tests/conformance/*zookeeper*' \
	'tests/simulation/test_simulation.py::test_a_node_in_memory_keeps_all_invariants[0]'

# Hardly anything waits there, and each tester imports all tests.
quick: TESTERS = 3
quick: ## before each commit: all checks, and the tests without servers
	@$(MAKE) --no-print-directory --jobs 2 lint types layers
	$(PYTEST) $(QUICK) -m "not servers and not system" $(ARGS)

check: ## all checks: lint, types, layers, test
	@$(MAKE) --no-print-directory --jobs 2 lint types layers bytecode
	@$(MAKE) --no-print-directory test

# The installed pure package stays; PYTHONPATH=build/compiled selects the compiled one.
compiled: .venv/.check ## build the package with a compiled hot core in build/compiled
	rm -rf build/compiled build/wheel
	MAINSPRING_COMPILE=1 $(BIN)/python -m build --no-isolation --wheel --outdir build/wheel .
	$(BIN)/python -m pip install --quiet --no-index --no-deps --target build/compiled build/wheel/*.whl

# Through the environment: make or the shell would expand parts of some names.
demo: export WORDS_OF = $(value DIR)
demo: .venv/.project ## count the words under DIR with a node and workers, and show their pages
	@./examples/wordcount/run.sh $${WORDS_OF:+"$$WORDS_OF"}

bench: .venv/.check interop ## measure against gearmand and others, print the table, write bench/results.json
	$(BIN)/python bench/run.py

clean: ## remove everything that these targets created, except results
	find src tests checks bench examples -name __pycache__ -prune -exec rm -rf {} +
	rm -rf .venv .demo build bench/.venv bench/peers/node/node_modules tests/interop/.venv tests/interop/node/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis
