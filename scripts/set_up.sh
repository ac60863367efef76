#!/usr/bin/env bash
# An environment for working on the project, in .venv: the package as it lies here, every extra, every gate.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON." >&2; exit 1; }
"$python" -m venv .venv
.venv/bin/pip install --quiet --upgrade pip
.venv/bin/pip install --quiet "torch==2.13.0"
# The gate's own versions, which are for Python 3.11; another Python takes the newest.
if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  .venv/bin/pip install --quiet --no-deps --require-hashes --requirement .ci/requirements.lock
  .venv/bin/pip install --quiet --no-deps --editable .
else
  .venv/bin/pip install --quiet --editable ".[dev]"
fi
.venv/bin/llm-perf-opt doctor
echo "Next: . .venv/bin/activate && bash .ci/run quick"
