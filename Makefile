# Every target sets up what it needs by itself, from a clean clone.

PYTHON ?= python3
BIN := .venv/bin
KERNELS := $(shell find ops data/simulator/csrc detector/cpp examples tests/cpp -name "*.cu" -o -name "*.cuh" -o -name "*.h" -o -name "*.cpp")
SANITIZERS := memcheck initcheck racecheck
# the tests of kernels and of their order; each other kind of GPU runs them
OF_KERNELS := tests/ops tests/detector/test_bev_rows_gpu.py tests/detector/test_frame_graph_gpu.py \
  tests/detector/test_encoder_gpu.py tests/detector/test_golden_openpcdet.py

.PHONY: help demo train-demo test test-gpu sanitize cross-aarch64 lint types check format bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: .venv/installed  ## the shipped weights on a simulated drive: output/demo/
	$(BIN)/millisecond tour --output output/demo

train-demo: .venv/installed  ## simulate streets, train, evaluate, detect, draw: output/train_demo/
	$(BIN)/millisecond train_demo --output output/train_demo

test: .venv/installed  ## run all tests; those of the kernels skip where there is no GPU
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

test-gpu: .venv/installed  ## run the tests that need a GPU, those of the kernels also as on other GPUs
	$(BIN)/python -m millisecond.ops.check
	$(BIN)/python -m pytest -q -m gpu
	for device in 10.0 12.0; do \
	  $(BIN)/python -m pytest -q -m gpu --device-limits $$device $(OF_KERNELS) || exit 1; done
	TORCH_CUDA_ARCH_LIST=8.0+PTX $(BIN)/python -m pytest -q -m gpu $(OF_KERNELS)
	for device in 8.0 8.6 8.7 8.9; do TORCH_CUDA_ARCH_LIST=8.0+PTX \
	  $(BIN)/python -m pytest -q -m gpu --device-limits $$device $(OF_KERNELS) || exit 1; done

sanitize: .venv/installed  ## run every kernel under compute-sanitizer; needs a GPU
	$(BIN)/python -m millisecond.ops.check
	for tool in $(SANITIZERS); do PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
	  compute-sanitizer --tool $$tool --error-exitcode 1 \
	  $(BIN)/python tests/helpers/every_kernel.py || exit 1; done

cross-aarch64: .venv/installed  ## compile all host code for aarch64, run the kernels for CPUs in qemu
	$(BIN)/python -m pytest -q tests/cpp/test_aarch64.py
	$(BIN)/python tests/helpers/cross_aarch64.py

lint: .venv/installed types  ## check style and types, print the sizes of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)
	$(BIN)/python -m pytest -qs tests/test_house.py

types: .venv/installed  ## check types in ops, data and detector
	@mkdir -p build/types && ln -sfn ../.. build/types/millisecond
	$(BIN)/mypy

check: lint test  ## all that a change must pass: style, types, tests

format: .venv/installed  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(KERNELS)

bench: .venv/installed  ## time points to boxes, stage by stage
	$(BIN)/millisecond bench network

clean:  ## delete .venv, build and output
	rm -rf .venv build output *.egg-info

.venv/installed: pyproject.toml constraints.txt tools/system_libraries.sh
	sh tools/system_libraries.sh
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@
