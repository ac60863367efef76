"""What axe-core, an independent checker of accessibility, says of an open page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

_FOLDERS = os.environ.get("NODE_PATH", "").split(os.pathsep)
_FILE = next((file for folder in _FOLDERS if (file := Path(folder) / "axe-core" / "axe.min.js").is_file()), None)
needs_axe = pytest.mark.skipif(_FILE is None, reason="needs axe-core in NODE_PATH")
_PATIENCE_S = 300
_RUN = """
const done = arguments[arguments.length - 1];
const told = ({ target, failureSummary }) => `${target}: ${failureSummary}`;
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(
  violations.map(({ id, impact, nodes }) => ({ id, impact, places: nodes.slice(0, 3).map(told) })),
));
"""


def serious_findings(driver: Any) -> list[dict[str, Any]]:
    """Findings that keep somebody from reading the page, or nearly so; each with up to three places."""
    assert _FILE is not None
    driver.set_script_timeout(_PATIENCE_S)
    driver.execute_script(_FILE.read_text(encoding="utf-8"))
    return [finding for finding in driver.execute_async_script(_RUN) if finding["impact"] in ("serious", "critical")]
