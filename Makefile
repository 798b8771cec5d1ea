# Everything runs from .venv, which `make setup` creates once and brings up to date when its inputs change.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

# The plain package index serves torch with CUDA on Linux. For the small CPU build:
#   make setup PIP_TORCH_ARGS="--index-url https://download.pytorch.org/whl/cpu"
PIP_TORCH_ARGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt

# Only the recipe that creates the environment asks for an interpreter.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help setup demo test test-gpu lint format bench train-weights clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

setup: $(STAMP) ## create .venv and install surefoot with its development tools

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		py="$(PYTHON)"; \
		[ -n "$$py" ] || { echo "Python 3.11 or newer with venv is needed; install it or pass PYTHON=/path/to/python" >&2; exit 2; }; \
		echo "creating $(VENV) with $$py"; "$$py" -m venv $(VENV); \
	fi
	@echo "installing into $(VENV) (minutes the first time)"
	@$(PIP) $(PIP_TORCH_ARGS) "$$(grep '^torch==' constraints.txt)"
	@$(PIP) -e '.[dev]'
	@# the grammar library without its dependency on triton (1 GB), which serves CUDA only
	@$(PIP) --no-deps xgrammar apache-tvm-ffi
	@touch $@

demo: $(STAMP) ## answer with the real model, plain and speculative, and compare
	@$(BIN)/surefoot demo $(ARGS)

# Of two cores one test uses little more than one. A file stays with one worker: its fixtures load models.
WORKERS ?= 2

test: $(STAMP) ## run the tests (ARGS="-k tree" narrows them; WORKERS=0: in one process)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-gpu: $(STAMP) ## run the tests that need a CUDA device
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "no CUDA device here; run this on a machine with one and a CUDA build of torch")'
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

lint: $(STAMP) ## style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## apply the formatter and the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## measure engine and drafters; results go to benchmarks/results
	@$(BIN)/python benchmarks/engine.py $(ARGS)
	@$(BIN)/python benchmarks/speed.py $(ARGS)
	@$(BIN)/python benchmarks/options.py $(ARGS)

# Text and heads go to HEADS (about 20 GB, and hours); what is interrupted goes on when the target is made again.
HEADS ?= heads
TRAIN := $(BIN)/surefoot train
ON_TEXT := --data $(HEADS)/text --vocabulary 4096 --amp --patience 0 --threads 2

$(HEADS)/text: $(STAMP)
	@$(TRAIN) capture --data $(HEADS)/text-1 --documents 2304 --seed 1 --taps 2/6/15/27/31
	@$(TRAIN) capture --data $(HEADS)/text-2 --documents 3968 --seed 2 --taps 2/6/15/27/31
	@$(BIN)/python -m surefoot.train.join $(HEADS)/text $(HEADS)/text-1 $(HEADS)/text-2

train-weights: $(HEADS)/text ## train the heads that come with the default model, and put them under weights/
	@$(TRAIN) eagle $(ON_TEXT) --out $(HEADS)/eagle --batch-tokens 2048 --epochs 3
	@$(TRAIN) hydra $(ON_TEXT) --out $(HEADS)/hydra --batch-tokens 1024 --epochs 2 --set taps_read=15/27/31
	@$(TRAIN) medusa $(ON_TEXT) --out $(HEADS)/medusa --batch-tokens 1024 --epochs 3
	@$(TRAIN) distill $(ON_TEXT) --out $(HEADS)/distilled --batch-tokens 2048 --epochs 3
	@$(TRAIN) exit $(ON_TEXT) --out $(HEADS)/exit --batch-tokens 2048 --epochs 3 --set layer=6
	@$(TRAIN) exit $(ON_TEXT) --out $(HEADS)/exit-deep --batch-tokens 2048 --epochs 3 --set layer=15
	@$(BIN)/python -m surefoot.train.ship --model smollm2-135m-instruct weights $(HEADS)/eagle $(HEADS)/hydra \
		$(HEADS)/medusa $(HEADS)/distilled $(HEADS)/exit early_exit_deep=$(HEADS)/exit-deep --auto hydra --taps 15 27 31

clean: ## remove caches and build products; keeps .venv and downloaded models
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
