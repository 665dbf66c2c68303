# One page of commands. `make demo` and `make test` do all of their own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# platform/ lies beside this file; a current directory on sys.path could shadow Python's own module of that name.
export PYTHONSAFEPATH := 1

ifneq ($(wildcard platform/__init__.py),)
$(error platform/__init__.py must not exist: it would shadow Python's own `platform` module; remove it)
endif

CC ?= cc
PY := .venv/bin/python
SUPERVISOR := sandbox_images/supervisor
PYTEST := $(PY) -m pytest
PYTEST_ARGS ?=
BENCH ?=

.PHONY: help install fmt check check-c test test-unit test-docker test-slow images bench demo clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Compiler, virtual environment and package (quick when nothing changed)
	@bash scripts/setup python

fmt: install ## Format and sort imports
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format .

check: install ## The fast gate: lint, format, types, C, architecture
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(MAKE) check-c
	@$(PYTEST) -q tests/test_architecture.py -m "not docker"

check-c: install ## The supervisor: warnings as errors, unit tests, sanitizers
	@$(MAKE) -j2 -C $(SUPERVISOR) CC=$(CC) PYTHON=$(abspath $(PY)) check asan

test: ## Every test but the slow ones, against a real engine; does its own set-up
	@bash scripts/setup
	@bash scripts/run_tests $(PYTEST_ARGS)

test-unit: install ## Tests that need no engine, in seconds
	@$(PYTEST) tests/unit tests/test_architecture.py -m "not slow and not docker" $(PYTEST_ARGS)

test-docker: ## Tests against a real engine; does its own set-up
	@bash scripts/setup
	@KINFOLD_REQUIRE_DOCKER=1 $(PYTEST) -m "docker and not slow" $(PYTEST_ARGS)

test-slow: ## The slow tests: soaks, floods, all images
	@bash scripts/setup
	@KINFOLD_REQUIRE_DOCKER=1 $(PYTEST) -m slow --timeout=900 $(PYTEST_ARGS)

images: ## Build every sandbox image
	@bash scripts/setup
	@.venv/bin/kinfold images build base python node

bench: ## Measure the bars and write scripts/bench/results; BENCH="loop delegation" for some of the sets
	@bash scripts/setup
	@PYTHONPATH=scripts/bench $(PY) scripts/bench/run.py $(BENCH)

demo: ## Watch a main agent and three subagents work in one container; does its own set-up
	@bash scripts/setup
	@.venv/bin/kinfold demo

clean: ## Remove what was built here; containers and images stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis $(SUPERVISOR)/build
	@find platform tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
