# Every target works on a fresh clone with Python 3.11 or newer and make: it brings .venv in line
# with the committed pins first (scripts/venv.sh), which takes no time when it already is.
# Written for GNU make 3.81 and later, because that is what macOS has.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

BIN := .venv/bin
VENV := sh scripts/venv.sh
TREES := $(wildcard src tests scripts bench)
COVERAGE := --cov --cov-report=term:skip-covered
# Two processes share the tests; tests/conftest.py says how.
SHARED := --numprocesses 2
# A test that hangs is shown with the stacks of all its threads, and ends the run.
HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
PYTEST = $(BIN)/python -m pytest $(HANGS) -m "not interop and not torture"

# PYTHON=… names the interpreter to build .venv from; without it one is looked for.
export PYTHON

.PHONY: help
help:
	@echo "Headwater: make <target>"
	@echo
	@echo "  demo         run the main job end to end, on this machine, with nothing else installed"
	@echo "  test         a fair sample of everything                     (ARGS='tests/store -k name')"
	@echo "  coverage     the same, and what of the code it runs; takes twice as long"
	@echo "  check        ruff, mypy --strict, layers, tidy, pins, exports"
	@echo "  format       let ruff put right what it can"
	@echo
	@echo "  bench        measure Headwater                               (ARGS=… to each program)"
	@echo "  bench-peers  the same work on what one would pick instead, installed on demand"
	@echo "  interop      tests against real servers; skips say why       (ARGS='-k minio')"
	@echo "  torture      full counts of simulated histories              (PACKAGE= SCENARIO= SEED= ROUNDS=)"
	@echo
	@echo "  java         find Java 17 or newer, or install one into .venv; prints JAVA_HOME"
	@echo "  pins         renew requirements/*.txt from pyproject.toml    (UPGRADE=1 for newer versions)"
	@echo "  clean        remove .venv, caches and build output"
	@echo
	@echo "PYTHON=/path/to/python names the interpreter to use (3.11 or newer)."

.PHONY: venv
venv:
	@$(VENV) dev spark

.PHONY: demo
demo: venv
	@$(BIN)/python -m headwater.cli demo $(ARGS)

# Tracing more than doubles the processor time of the tests. It is done when make is to check as well,
# as CI has it do, and by make coverage; of a part of the tests (ARGS) coverage says nothing.
.PHONY: test
test: venv
	$(PYTEST) $(if $(ARGS),$(ARGS),$(SHARED) $(if $(filter check,$(MAKECMDGOALS)),$(COVERAGE)))

.PHONY: coverage
coverage: venv
	$(PYTEST) $(SHARED) $(COVERAGE)

.PHONY: check
check: venv
	@$(BIN)/ruff check $(TREES) || { echo "→ make format repairs what can be repaired automatically"; exit 1; }
	@$(BIN)/ruff format --check $(TREES) || { echo "→ run: make format"; exit 1; }
	@$(BIN)/mypy --strict $(TREES)
	@$(BIN)/python scripts/check_layers.py
	@$(BIN)/python scripts/tidy.py
	@$(BIN)/python scripts/check_pins.py
	@$(BIN)/python -m pytest -q --no-header tests/project/test_exports.py

.PHONY: format
format: venv
	$(BIN)/ruff check --fix-only --quiet $(TREES)
	$(BIN)/ruff format $(TREES)

.PHONY: bench
bench: venv
	@set -e; found=; for program in bench/*.py; do \
	  case $$program in bench/\**|bench/_*|bench/compare.py) continue;; esac; \
	  found=1; echo "── $$program"; $(BIN)/python -m bench.$$(basename $$program .py) $(ARGS); \
	done; [ -n "$$found" ] || echo "There are no benchmarks in bench/ yet."

# A peer that cannot be installed is left out with its reason, not a failure.
.PHONY: bench-peers
bench-peers: venv
	@$(VENV) peers || echo "→ going on without requirements/peers.txt; what needs it is skipped"
	@set -e; found=; for program in bench/peers/*.py; do \
	  case $$program in bench/peers/\**|bench/peers/_*) continue;; esac; \
	  found=1; echo "── $$program"; $(BIN)/python -m bench.peers.$$(basename $$program .py) $(ARGS); \
	done; [ -n "$$found" ] || echo "There are no comparisons in bench/peers/ yet."

# A server that cannot be installed is a skip with its reason, not a failure.
.PHONY: interop
interop: venv
	@$(VENV) interop || echo "→ going on without requirements/interop.txt; what needs it is skipped"
	$(BIN)/python -m pytest tests/interop -m interop -rs -v $(ARGS)

.PHONY: torture
torture: venv
	$(BIN)/python -m tests.torture $(if $(PACKAGE),--package $(PACKAGE)) $(if $(SCENARIO),--scenario $(SCENARIO)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.PHONY: java
java: venv
	@$(BIN)/python scripts/java.py

# all.txt is the one source of versions; the other sets are its parts.
UV_COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --no-header $(if $(UPGRADE),--upgrade)

.PHONY: pins
pins: venv
	$(UV_COMPILE) --all-extras pyproject.toml requirements/all.in requirements/build.in -o requirements/all.txt
	$(UV_COMPILE) -c requirements/all.txt requirements/build.in -o requirements/build.txt
	$(UV_COMPILE) -c requirements/all.txt pyproject.toml -o requirements/base.txt
	$(UV_COMPILE) -c requirements/all.txt --extra dev pyproject.toml -o requirements/dev.txt
	$(UV_COMPILE) -c requirements/all.txt --extra demo pyproject.toml -o requirements/spark.txt
	$(UV_COMPILE) -c requirements/all.txt requirements/java.in -o requirements/java.txt
	$(UV_COMPILE) -c requirements/all.txt requirements/interop.in -o requirements/interop.txt
	$(UV_COMPILE) -c requirements/all.txt requirements/peers.in -o requirements/peers.txt
	$(BIN)/python scripts/check_pins.py --record
	@if grep -nE '://|index-url|find-links' requirements/*; then echo "pins name no address"; exit 1; fi

.PHONY: clean
clean:
	rm -rf .venv .venv.lock .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests scripts $(wildcard bench) -name __pycache__ -type d -prune -exec rm -rf {} +
