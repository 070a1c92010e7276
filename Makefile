# Every target first makes .venv, from nothing but python3, pip and make.
PYTHON  ?= python3
WORKERS ?= 2
BIN     := .venv/bin
READY   := .venv/.installed
# What training needs is a third of what the tests need.
ALONE   := .venv/.alone
# -r s: the last lines say what was skipped, and how to have it.
# One thread for each test worker: two workers that each start two threads fight for two cores.
SINGLE  := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST  := $(SINGLE) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -r s

.DEFAULT_GOAL := help
.PHONY: help train test test-all check bench results docs clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Memory that a step has freed is kept for the next, in large pages, instead of being faulted in
# again: a training step takes 0.9 of the time. Other C libraries than glibc take no notice.
train results: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=8589934592
train: $(ALONE)  ## Atlas beside a Transformer++ on enwik8, in minutes
	$(BIN)/atlas train quickstart

test: $(READY)  ## the fast tests; those of the memory once more without its kernels
	$(PYTEST)
	ATLAS_NATIVE=0 $(PYTEST) tests/memory tests/layers

test-all: $(READY)  ## the fast tests, the slow ones and those that compile
	$(PYTEST) -m ""

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)  ## speed and memory, as ratios taken in one run
	$(BIN)/python benchmarks/engine.py

HOURS ?= 1
results: $(READY)  ## run what docs/results lacks, cheapest first, for HOURS=1
	$(BIN)/python benchmarks/results.py --hours $(HOURS)

docs: $(READY)  ## the pages as a site, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove the environment and everything made by tools
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): EXTRA := [dev]
$(READY) $(ALONE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.$(EXTRA)'
	touch $(ALONE) $@
