#!/usr/bin/env bash
# Everything that only a GPU can tell, in one run. `tools/gpu_check.sh --help` says what the steps do, how long they may
# take and what must be installed.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
export PYTHONPATH="$root:$root/tools:$root/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec "${PYTHON:-python3}" -m gpu_check "$@"
