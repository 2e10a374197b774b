#!/usr/bin/env bash
# Everything that only a GPU can tell, in one run of about 8 minutes: build, tests, a second oracle, compute-sanitizer,
# CUDA graphs and streams, offsets past 2^31 and the benchmark. Ends with a table; exit status 1 if anything failed.
#
#   tools/gpu_check.sh [--backend cuda|simt] [--out FOLDER] [--tests EXPRESSION] [STEP...]
#
# The steps are build, tests, cupy, sanitizer, graphs, large and bench; without names all run, in that order. --backend
# simt runs them on the emulator of tests/simt instead of a GPU, at small sizes; its numbers mean nothing. --tests
# narrows the tests step, as pytest's -k does. FOLDER (default build/gpu_check) gets summary.json, bench.json, log.txt.
#
# Nothing is downloaded. The machine must have, and PYTHON (default python3) must see:
#   always      torch 2.11 or newer, numpy, safetensors, pytest; for cuda a CUDA build of torch and a GPU
#   build       nvcc of torch's CUDA version, a C++20 compiler, cmake >= 3.26, ninja, pybind11, setuptools >= 77
#   cupy        cupy-cuda13x (or the one for the CUDA at hand)
#   sanitizer   compute-sanitizer of the CUDA toolkit, in PATH or CUDA_HOME/bin
#   bench       rich
# What a step lacks is said in its line of the table, and counts as a failure of that step alone. For a machine without
# a network, `pip download` what it lacks elsewhere and `pip install --no-index --find-links FOLDER` it there. The step
# build builds in the source folder (setup.py build_ext --inplace), so the package itself need not be installed.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
export PYTHONPATH="$root:$root/tools:$root/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" -m gpu_check "$@"
