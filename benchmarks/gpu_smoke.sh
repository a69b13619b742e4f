#!/usr/bin/env bash
# Does everything hold on this machine's GPU, for every family of targets? At most 6 minutes, no network, no downloads.
#   bash benchmarks/gpu_smoke.sh [results.json]
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 PYTHONPATH=.
exec timeout 360 "${PYTHON:-python}" benchmarks/gpu_smoke.py --out "${1:-gpu_smoke.json}"
