# Every target sets up what it needs by itself, from a clean clone.

PYTHON ?= python3
BIN := .venv/bin
KERNELS := $(shell find ops data/simulator/csrc detector/cpp examples tests/cpp -name "*.cu" -o -name "*.cuh" -o -name "*.h" -o -name "*.cpp")
SANITIZERS := memcheck initcheck racecheck
# the tests of kernels and of their order; each other kind of GPU runs them
OF_KERNELS := tests/ops tests/detector/test_bev_rows_gpu.py tests/detector/test_frame_graph_gpu.py \
  tests/detector/test_encoder_gpu.py tests/detector/test_golden_openpcdet.py
# of make cross and make wheel: GPUs, the last one with PTX for newer ones; versions of torch; x86_64 or aarch64
TARGETS := 80 86 87 89 90a 100 110 120
TORCH := 2.11.0 2.12.1 2.13.0 2.14.1
MACHINE := x86_64
empty :=
NOT_ALL := $(if $(filter command line,$(origin TARGETS)),-$(subst $(empty) $(empty),-,$(TARGETS)))
WHEEL := build/kernels-$(MACHINE)$(NOT_ALL)
NVCC := $(or $(shell command -v nvcc),$(CURDIR)/build/cuda/nvidia/cu13/bin/nvcc)
list = $(subst $(empty) $(empty),;,$(strip $(1)))
short = $(foreach version,$(1),$(basename $(version)))
CONFIGURE = PATH="$$PATH:$(CURDIR)/$(BIN)" CUDACXX=$(NVCC) cmake -G Ninja -S ops -B $(WHEEL) "-DTARGETS=$(call list,$(TARGETS))"
ARM_CUDA := $(CURDIR)/build/cuda-aarch64/nvidia/cu13
ARM := -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_CUDA_HOST_COMPILER=aarch64-linux-gnu-g++ \
  "-DCMAKE_CXX_FLAGS=-isystem $(ARM_CUDA)/include" \
  "-DCMAKE_CUDA_FLAGS=-L$(ARM_CUDA)/lib -isystem $(ARM_CUDA)/include -isystem $(ARM_CUDA)/include/cccl"

.PHONY: help demo train-demo test test-gpu sanitize cross cross-aarch64 wheel lint types check format pictures bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

demo: .venv/installed  ## the shipped weights on a simulated drive: output/demo/
	$(BIN)/millisecond tour --output output/demo
	@echo 'in each new shell, first: source .venv/bin/activate'

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

cross: .venv/installed build/cuda  ## compile the kernels for all GPUs, write docs/kernels.md; needs no GPU
	$(CONFIGURE)
	$(BIN)/ninja -C $(WHEEL) millisecond_kernels
	PATH="$$PATH:build/cuda/nvidia/cu13/bin" $(BIN)/python -m docs.kernels $(WHEEL)/libmillisecond_kernels.so

wheel: .venv/installed build/cuda build/cuda-aarch64 $(TORCH:%=build/torch/%)  ## a wheel with the kernels: build/wheels/
	$(CONFIGURE) $(if $(filter aarch64,$(MACHINE)),$(ARM)) \
	  "-DTORCH=$(call list,$(call short,$(TORCH)))" -DTORCH_HEADERS=$(CURDIR)/build/torch
	$(BIN)/ninja -C $(WHEEL)
	rm -rf $(WHEEL)/prebuilt
	cmake --install $(WHEEL) --prefix $(WHEEL)/prebuilt
	MILLISECOND_PREBUILT=$(CURDIR)/$(WHEEL)/prebuilt $(BIN)/pip wheel -q --no-deps -w build/wheels .
	ls -l build/wheels

build/cuda: | .venv/installed
	$(BIN)/pip install -q --target $@ "nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cccl==13.0.*" \
	  "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*" nvidia-cuda-cuobjdump
	ln -s lib $@/nvidia/cu13/lib64  # where nvcc looks

build/cuda-aarch64: | .venv/installed
	$(BIN)/pip install -q --target $@ --no-deps --platform manylinux2014_aarch64 --only-binary=:all: \
	  "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cccl==13.0.*" "nvidia-cuda-crt==13.0.*"

build/torch/%: | .venv/installed  # its headers; the build of CUDA has all of them
	$(BIN)/pip download -q --no-deps --python-version 3.12 --platform manylinux_2_28_x86_64 --only-binary=:all: -d $@.whl torch==$*
	mkdir -p $(basename $@)
	unzip -q $@.whl/*.whl 'torch/include/*' -d $(basename $@)
	rm -r $@.whl
	touch $@

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

pictures: .venv/installed  ## draw every picture of README and docs again
	$(BIN)/python -m docs.pictures

bench: .venv/installed  ## time points to boxes, stage by stage
	$(BIN)/millisecond bench network

clean:  ## delete .venv, build and output
	rm -rf .venv build output *.egg-info

.venv/installed: pyproject.toml constraints.txt tools/system_libraries.sh
	sh tools/system_libraries.sh
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@
