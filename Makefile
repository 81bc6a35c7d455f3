# make setup | demo | serve | test | test-all | lint | format. `make demo` and `make test` set up what they need.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
LOCK := requirements/cpu.lock
# Further arguments for pip, such as --extra-index-url for where PyTorch keeps its CPU wheels.
PIP_ARGS ?=
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	if $$python -c '$(SUPPORTED)' >/dev/null 2>&1; then echo $$python; break; fi; done)
SERVE_ARGS ?= --port 8000

.PHONY: help setup demo serve test test-all lint format

help:
	@grep -E '^# make' Makefile | cut -c3-

setup: $(STAMP)

$(STAMP): $(LOCK) pyproject.toml
	@if ! $(PYTHON) -c '$(SUPPORTED)' >/dev/null 2>&1; then \
		echo "make setup needs Python 3.11, 3.12 or 3.13, and $(if $(PYTHON),'$(PYTHON)' is not one of them,found none)." \
			"Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@echo "Setting up $(VENV) (about 1 GB of packages; a few minutes)"
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments." \
		"Install its venv module (Debian: apt-get install python3-venv) and run make again." >&2; exit 1; }
	@$(BIN)/pip install --disable-pip-version-check --no-deps $(PIP_ARGS) -r $(LOCK)
	@$(BIN)/pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'import torch; assert torch.version.cuda is None' 2>/dev/null || { \
		echo "pip has installed a torch that is not the CPU build. Remove $(VENV) and point pip at PyTorch's CPU wheels:" \
			"make setup PIP_ARGS='--extra-index-url URL', with the URL that PyTorch's installation page shows for pip and CPU" >&2; exit 1; }
	@touch $@

demo: $(STAMP)
	@$(BIN)/python demo/run.py

serve: $(STAMP)
	$(BIN)/wisp serve demo/model --expert-slots 16 --served-model-name demo --enforce-eager \
		--kv-cache-memory-bytes 67108864 $(SERVE_ARGS)

test: $(STAMP)
	$(BIN)/pytest

test-all: $(STAMP)
	$(BIN)/pytest -m ''

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
