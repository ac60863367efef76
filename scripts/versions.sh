#!/usr/bin/env bash
# Every verb once with Python 3.12 and 3.13, and with the lowest version of every dependency on Python 3.11.
#
#   bash scripts/versions.sh [3.12] [3.13] [lowest]     all three unless named
#
# Environments live outside the tree and are made anew when a dependency or the interpreter changes; uv makes them if pip
# can install it, else pip: they take 8 GB together, as what two of them share is stored once. An interpreter that cannot
# be found is reported and left out; with VERSIONS_STRICT=1 that is a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cache=${XDG_CACHE_HOME:-$HOME/.cache}/llm-perf-opt
tools=$cache/smoke-tools
left_out=()
export UV_CACHE_DIR=$cache/smoke-uv  # beside the environments, so that it shares its files with them
export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}}
[ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
[ -n "$UV_DEFAULT_INDEX" ] || unset UV_DEFAULT_INDEX
unset PYTHONDONTWRITEBYTECODE  # uv compiles nothing, so the first process that imports a module does it for the others
wanted='import pathlib, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
print(project["dependencies"], [some for name, some in project["optional-dependencies"].items() if name != "dev"])'

interpreter() { # VERSION: its path, or nothing
  local found
  for found in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/python; do
    if [ -x "$found" ] && [ "$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
      echo "$found"
      return
    fi
  done
}

with_uv() { # PYTHON: whether uv is there; installed for this once if it is not
  [ -x "$tools/bin/uv" ] || { "$1" -m venv "$tools" && "$tools/bin/python" -m pip install --quiet uv; } >&2
}

install() { # FOLDER CONSTRAINTS REQUIREMENT...
  local folder=$1 constraints=$2
  shift 2
  if with_uv "$folder/bin/python" && "$tools/bin/uv" pip install --quiet --python "$folder/bin/python" -c "$constraints" "$@"; then
    "$tools/bin/uv" pip check --quiet --python "$folder/bin/python"
  else
    echo "   without uv" >&2
    "$folder/bin/python" -m pip install --quiet --no-compile -c "$constraints" "$@"
    "$folder/bin/python" -m pip check
  fi
}

environment() { # NAME PYTHON [CONSTRAINTS]: made or kept, with every extra; the package itself is read from src/
  local folder=$cache/smoke-$1 python=$2 constraints=${3:-/dev/null} stamp
  stamp=$({ "$python" -V; "$python" -c "$wanted"; cat "$constraints"; } | sha256sum | cut -d' ' -f1)
  [ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  rm -rf "$folder"
  "$python" -m venv "$folder"
  install "$folder" "$constraints" "torch==2.13.0" ".[all]"
  echo "$stamp" >"$folder/stamp"
}

smoke() { # NAME VERSION [CONSTRAINTS]
  local python
  python=$(interpreter "$2")
  if [ -z "$python" ]; then
    echo "== $1: LEFT OUT, no Python $2 was found" >&2
    left_out+=("$1")
    return 0
  fi
  local began=$SECONDS
  environment "$1" "$python" "${3:-}"
  echo "== $1: $("$python" -V), environment $((SECONDS - began)) s"
  PYTHONPATH=$PWD/src:$PWD "$python" -m scripts.smoke_verbs "$cache/smoke-$1/bin/python"
}

[ $# -gt 0 ] || set -- 3.12 3.13 lowest
for name in "$@"; do
  if [ "$name" = lowest ]; then
    python=$(interpreter 3.11)
    mkdir -p "$cache"
    if [ -n "$python" ]; then "$python" scripts/lowest_versions.py >"$cache/lowest.txt"; fi
    smoke lowest 3.11 "$cache/lowest.txt"
  else
    smoke "$name" "$name"
  fi
done
rm -rf "$UV_CACHE_DIR"  # what the environments use stays with them
if [ ${#left_out[@]} -gt 0 ]; then
  echo "Not tried: ${left_out[*]}. Install the interpreter to try them." >&2
  [ -z "${VERSIONS_STRICT:-}" ] || exit 1
fi
