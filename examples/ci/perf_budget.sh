#!/usr/bin/env bash
# Trace a model and compare it with a baseline that lies in the repository; exit code 3: a budget does not hold, 1: something failed.
#
#   perf_budget.sh MODEL BASELINE [options of trace] -- [options of compare]
set -euo pipefail

if [ $# -lt 2 ]; then
  echo "usage: perf_budget.sh MODEL BASELINE [options of trace] -- [options of compare]" >&2
  exit 2
fi
model=$1 baseline=$2
shift 2
workload=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  workload+=("$1")
  shift
done
[ $# -eq 0 ] || shift

if ! command -v llm-perf-opt >/dev/null; then
  echo "llm-perf-opt is not installed here: pip install 'llm-perf-opt[trace]'" >&2
  exit 2
fi
if [ ! -d "$baseline" ]; then
  echo "There is no baseline $baseline. Make it, and commit it:" >&2
  echo "  llm-perf-opt trace $model ${workload[*]} --out $baseline" >&2
  exit 2
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
llm-perf-opt trace "$model" "${workload[@]}" --out "$place/now" >/dev/null
llm-perf-opt compare "$baseline" "$place/now" --rows 5 "$@"
