#!/usr/bin/env bash
# Every picture that the documentation shows, made anew; those of pages are taken in a real browser.
#
#   bash scripts/pictures.sh [FOLDER]     docs/images unless told
#
# Needs llm-perf-opt and selenium in the environment, and Chromium with its driver.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$repository/docs/images}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
llm-perf-opt trace deepseek-ocr --image 1240x1754 --out run/ >/dev/null 2>&1
llm-perf-opt graph run/ --out "$folder/deepseek-ocr-prefill.svg" --force 2>/dev/null
llm-perf-opt graph run/ --out graph.html 2>/dev/null
llm-perf-opt report deepseek-ocr --image 1240x1754 --gpus h100-sxm,l40s --out report.html 2>/dev/null
grid=("$repository/tests/facts/deployment/configs/llama31-8b" --users 1..512 --input 1k..128k --gpus h100-sxm)
llm-perf-opt sweep "${grid[@]}" --format html >sweep.html 2>/dev/null
llm-perf-opt sweep "${grid[@]}" --out explore.html 2>/dev/null
llm-perf-opt trace deepseek-ocr --image 1240x1754 --format html >ten-trace.html 2>/dev/null
llm-perf-opt cost run/ --format html >ten-cost.html 2>/dev/null
llm-perf-opt profile deepseek-ocr-tiny --image 90x130 --join run.folder=tiny/ --format html >ten-profile.html 2>/dev/null
llm-perf-opt export deepseek-ocr --part projector --check export --check onnx --format html >ten-export.html 2>/dev/null
export PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}"
python -m scripts.take_screenshots graph.html "$folder"
python -m scripts.take_report_screenshots report.html "$folder"
python -m scripts.take_report_screenshots sweep.html "$folder" sweep
python -m scripts.take_report_screenshots explore.html "$folder" explore
python -m scripts.take_report_screenshots "$repository/docs/data/ocr-study.html" "$folder" study
for name in ten-trace ten-cost ten-profile ten-export; do
  python -m scripts.take_report_screenshots "$name.html" "$folder" "$name"
done
# Requests that are replayed need an environment with vLLM; without one its picture stays as it is.
if llm-perf-opt serve deepseek-ocr --gpus "a100-sxm-80g, h100-sxm, l40s" \
  --traffic "64 at once pages=A4@150dpi:80,640x640:20 output=800 requests=192" --pages 20000000 --within 24h \
  --price a100-sxm-80g=1.4,h100-sxm=2.5,l40s=0.9 --out capacity.html 2>/dev/null; then
  python -m scripts.take_report_screenshots capacity.html "$folder" capacity
else
  cp "$repository/docs/images/capacity-light.png" "$folder/"
fi
