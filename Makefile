# The one task runner. `make demo` and `make test` are all the set-up there is.
#
#   setup  everything a developer needs, in .venv      lint   all static checks
#   demo   three on-device tasks, plain and drafted    fmt    format Python and C++
#   test   install what the tests need, run them       bench  measure, write docs/results.json
#   ci     lint + test                                 docs   write the generated documentation
#   fuzz   hostile model files for SECONDS (60)        results  docs/results.md from the benches' JSON
#
# Variables: PYTHON (the interpreter .venv is made from), PYTEST_FLAGS, SECONDS, SEED; for bench
# BACKBONE, BENCH_FLAGS, and RESULTS: docs/results/NAME.json adds a backbone to the results page.

PYTHON ?= python3
PYTEST_FLAGS ?=
BENCH_FLAGS ?=
SECONDS ?= 60
SEED ?= 0
BACKBONE := smollm2-135m
RESULTS := docs/results.json

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
DRAFTHEAD := $(BIN)/drafthead

# Stamps: a target is redone only when what it was made from has changed.
VENV := .venv/.stamp-venv
RUNTIME := .venv/.stamp-runtime
TEST_TOOLS := .venv/.stamp-test
LINT_TOOLS := .venv/.stamp-lint
NATIVE := $(shell find native -type f \( -name '*.h' -o -name '*.cpp' \))

.PHONY: setup demo test fuzz lint fmt bench results docs ci
.NOTPARALLEL:

setup: $(RUNTIME) $(TEST_TOOLS) $(LINT_TOOLS)

demo: $(RUNTIME)
	@$(DRAFTHEAD) pull $(BACKBONE)
	@$(DRAFTHEAD) demo

test: $(RUNTIME) $(TEST_TOOLS)
	@$(DRAFTHEAD) pull $(BACKBONE)
	@$(BIN)/python -m pytest $(PYTEST_FLAGS)

fuzz: $(RUNTIME) $(TEST_TOOLS)
	@$(BIN)/python -m tests.fuzz.fuzz --seconds $(SECONDS) --seed $(SEED) --findings build/fuzz

lint: $(RUNTIME) $(LINT_TOOLS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/python scripts/make_cli_docs.py --check
	$(BIN)/python scripts/make_results.py --check

fmt: $(LINT_TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

# Written beside the old file first, so that a run cut short leaves the old results.
bench: $(RUNTIME)
	@$(DRAFTHEAD) pull $(BACKBONE)
	@mkdir -p $(dir $(RESULTS))
	$(DRAFTHEAD) bench --backbone $(BACKBONE) --json $(BENCH_FLAGS) > $(RESULTS).part
	@mv $(RESULTS).part $(RESULTS)

# Measures nothing: every number is in the committed JSON.
results: $(RUNTIME)
	$(BIN)/python scripts/make_results.py

docs: results
	$(BIN)/python scripts/make_cli_docs.py

ci: lint test

# Dependency groups (PEP 735) need pip 25.1; Debian 12 ships an older one.
$(VENV):
	@$(PYTHON) scripts/preflight.py
	@echo "Making .venv"
	@$(PYTHON) -m venv --clear .venv
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

$(RUNTIME): $(VENV) pyproject.toml CMakeLists.txt $(NATIVE)
	@echo "Building the core and installing drafthead into .venv (a minute or two the first time)"
	@$(PIP) install --editable .
	@touch $@

$(TEST_TOOLS): $(VENV) pyproject.toml
	@echo "Installing what the tests need"
	@$(PIP) install --group test
	@touch $@

$(LINT_TOOLS): $(VENV) pyproject.toml
	@echo "Installing the checkers"
	@$(PIP) install --group lint
	@touch $@
