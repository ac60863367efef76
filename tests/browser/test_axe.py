"""No page keeps a reader out: axe-core finds nothing serious, on a desk and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.axe import needs_axe, serious_findings
from tests.browser.conftest import resize
from tests.browser.every_page import PAGES

pytestmark = needs_axe
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
OPEN_WITNESS = "document.querySelector('[data-figure]')?.click()"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
def test_nothing_serious_is_found(
    browser: Any, tmp_path: Path, make: Callable[[], str], size: tuple[int, int], theme: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(make(), encoding="utf-8")
    resize(browser, size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        browser.get(page.as_uri())
        browser.execute_script(OPEN_WITNESS)
        assert serious_findings(browser) == []
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
