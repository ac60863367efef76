#!/usr/bin/env bash
# A stranger's first hour, from an empty folder: build the wheel, install it, and do what the pages say.
# Fails on the first command that does not do what the text says. Needs Python 3.11 or newer and pip.
#
#   bash scripts/first_hour.sh [--short] [--record FILE] [FOLDER]     FOLDER must be empty or absent; a temporary one unless told
#   --short                   the wheel alone: its first answers, and what each verb says that lacks an extra
#   --record FILE             keep the seconds of every command of the pages
#   FIRST_HOUR_SLOW=1         also the commands that run the full-size model for real (8 GB, minutes)
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
is_short=
record=()
while [ $# -gt 0 ]; do
  case $1 in
    --short) is_short=1; shift ;;
    --record) record=(--record "$2"); shift 2 ;;
    *) break ;;
  esac
done
if [ $# -gt 0 ]; then
  folder=$1
  mkdir -p "$folder"
  [ -z "$(ls -A "$folder")" ] || { echo "$folder is not empty." >&2; exit 2; }
  folder=$(cd "$folder" && pwd)
else
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
cd "$folder"

say() { echo "== $*"; }
within() { # SECONDS TEXT COMMAND...: run it, show the CPU seconds it took, and fail when they were too many
  local limit=$1 text=$2 TIMEFORMAT='%U %S'
  shift 2
  { time "$@" 2>&3; } 3>&2 2>times.txt
  awk -v limit="$limit" -v text="$text" \
    '{ printf "   %s: %.1f s of CPU (limit %d s)\n", text, $1 + $2, limit; exit ($1 + $2 > limit) }' times.txt ||
    { echo "$text took too long." >&2; exit 1; }
}

say "wheel"
"$python" -m venv build-venv
build-venv/bin/pip install --quiet --disable-pip-version-check build uv
build-venv/bin/python -m build --wheel --outdir "$folder/dist" "$repository" >build.log 2>&1 || { tail -20 build.log; exit 1; }
wheel=$(ls dist/*.whl)
bytes=$(stat -c %s "$wheel")
echo "   $(basename "$wheel"): $bytes bytes (limit 20 MB)"
[ "$bytes" -lt 20000000 ] || { echo "The wheel is too large." >&2; exit 1; }
(cd "$repository" && "$python" -m scripts.third_party "$folder/$wheel")

say "a clean environment with the wheel alone"
"$python" -m venv venv
find_links=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}  # uv reads no settings of pip
uv_install() { build-venv/bin/uv pip install --quiet --python venv/bin/python ${find_links:+--find-links "$find_links"} "$@"; }
if [ -n "$is_short" ]; then # the long journey installs as the pages say, with pip
  uv_install --compile-bytecode "torch==2.13.0" "$wheel" # pip compiles too: the first answer is timed
else
  venv/bin/pip install --quiet --disable-pip-version-check "torch==2.13.0"
  venv/bin/pip install --quiet --disable-pip-version-check "$wheel"
fi
venv/bin/pip check
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1 NO_COLOR=1
export BROWSER=true  # what --open starts

say "the first answer"
within 15 "first table" sh -c 'llm-perf-opt trace deepseek-ocr --image 1240x1754 --out run/ 2>/dev/null >first-table.txt'
grep -q "3,336,106,240" first-table.txt
within 15 "first picture" sh -c 'llm-perf-opt graph run/ --out graph.html 2>/dev/null'
grep -q "<html" graph.html
within 60 "one report" sh -c 'llm-perf-opt report deepseek-ocr --image 1240x1754 --gpus h100-sxm --out report.html 2>/dev/null'
grep -q "How fast does a server run it" report.html

say "what an extra would bring is said, not a traceback"
PYTHONPATH="$repository" venv/bin/python -m scripts.smoke_verbs --extras none
if [ -n "$is_short" ]; then
  say "without torch: uvx from a folder of wheels, offline, and every command that needs none"
  (cd "$repository" && PATH="$folder/build-venv/bin:$PATH" "$folder/build-venv/bin/python" -m scripts.light_install --python "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')")
  say "done, in short"
  exit 0
fi

say "everything"
everything=("${wheel}[all]" pandas nbclient ipykernel selenium)
uv_install "${everything[@]}" || venv/bin/pip install --quiet --disable-pip-version-check "${everything[@]}"
export PYTHONPATH="$repository"  # the scripts below import each other; the package is the installed one

say "every command of the pages"
python -m scripts.page_commands "$repository" "${record[@]}"

pictures_and_notebook() {
  say "the pictures of the pages"
  if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then
    bash "$repository/scripts/pictures.sh" pictures || return 1
    for picture in "$repository"/docs/images/*; do
      [ -s "pictures/$(basename "$picture")" ] || { echo "scripts/pictures.sh makes no $(basename "$picture")." >&2; return 1; }
    done
  else
    echo "No Chromium with its driver: the pictures cannot be made." >&2
    return 1
  fi
  say "the notebooks"
  for notebook in "$repository"/examples/*.ipynb; do python "$repository/scripts/run_notebook.py" "$notebook" || return 1; done
}

say "the Python of the pages; beside it their pictures and the notebook"
pictures_and_notebook >pictures-and-notebook.log 2>&1 &
beside=$!
python -m scripts.page_python "$repository" run || { kill "$beside" 2>/dev/null || true; exit 1; }
wait "$beside" || { cat pictures-and-notebook.log; exit 1; }
cat pictures-and-notebook.log

say "add a model, as the guide says"
python "$repository/scripts/follow_guide.py" "$repository/docs/contributing/add-a-model.md"

say "done"
