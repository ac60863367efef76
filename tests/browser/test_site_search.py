"""The built site, opened from a disk without a network, finds pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
TITLES = "return [...document.querySelectorAll('.md-search-result__item h1')].map(title => title.innerText)"
SCRIPTS = "return [...document.scripts].map(script => script.src).filter(address => !address.startsWith('file:'))"


@pytest.mark.slow
def test_search_works_from_a_disk(browser: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    assert (site / "search" / "search_index.js").stat().st_size > 100_000
    browser.get((site / "reference" / "vllm.html").as_uri() + "?q=calibration")
    titles = WebDriverWait(browser, 30).until(lambda driver: driver.execute_script(TITLES))
    assert "How fast is this machine?" in titles
    assert [address for address in browser.execute_script(SCRIPTS) if address] == []
