# `make demo` and `make test` set everything up by themselves, from a clean clone.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := ops data detector tools tests
KERNELS := $(shell find ops/csrc -name "*.cu" -o -name "*.cuh" -o -name "*.h" -o -name "*.cpp")

.PHONY: demo test lint format bench clean

demo: .venv/installed
	$(BIN)/python tools/demo.py --output output/demo

test: .venv/installed
	$(BIN)/python -m pytest -q

lint: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)

format: .venv/installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/clang-format -i $(KERNELS)

bench: .venv/installed
	$(BIN)/python tools/benchmark.py network

.venv/installed: pyproject.toml constraints.txt tools/system_libraries.sh
	sh tools/system_libraries.sh
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build output *.egg-info
