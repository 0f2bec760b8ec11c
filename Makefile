# Lineshaft: `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKERS ?= 2

help: ## List the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.stamp ## Create .venv and install everything into it

$(VENV)/.stamp: constraints.txt pyproject.toml deploy/install.py
	@$(PYTHON) deploy/install.py $(VENV)

demo: install ## Run the whole line on this machine: data, pretrain, finetune, a killed rank, a model
	@$(PY) -m lineshaft.cli demo

test: install ## Run the default test suite
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile

check: install ## Style, types, layers
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

docs: install ## Write the reference pages, which are made from the code
	@$(PY) -m docs.generate

clean: ## Remove what the tools left behind (never a state folder)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info

.PHONY: help install demo test check docs clean
