#!/usr/bin/env bash
# Measure the stages around the model on this machine's GPU; at most 8 minutes, no network, nothing downloaded.
#   bash benchmarks/gpu.sh [results.json]
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 PYTHONPATH=.
exec timeout 480 "${PYTHON:-python}" benchmarks/gpu.py --out "${1:-gpu.json}"
