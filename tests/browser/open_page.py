"""What a reader of the page does and sees, in the words of the page."""

from __future__ import annotations

from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.ui import WebDriverWait

OVERLAPS = """(() => {
    const rect = (e) => e.getBoundingClientRect(), found = [];
    for (const parent of document.querySelectorAll('#tree, .inside')) {
        const boxes = [...parent.children].filter((e) => e.matches('.box'));
        boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
            const [r, s] = [rect(a), rect(b)];
            const apart = r.left >= s.right || s.left >= r.right || r.top >= s.bottom || s.top >= r.bottom;
            if (!apart) found.push([a.id, b.id]);
        }));
    }
    return found;
})()"""
CUT_LABELS = """[...document.querySelectorAll('.head')].filter((head) => {
    const end = head.getBoundingClientRect().right;
    const texts = [...head.querySelectorAll('.name, .loop, .path, .cost, .calls')];
    return texts.some((e) => e.getBoundingClientRect().right > end);
}).map((head) => head.title)"""


class OpenPage:
    """A page that a browser shows."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        driver.get(address)
        self.wait_until("document.documentElement.dataset.ready === 'yes'")

    def ask(self, expression: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {expression}", *arguments)

    def wait_until(self, expression: str) -> None:
        WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda _: self.ask(expression))

    def by_id(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return self.ask("[...document.querySelectorAll(arguments[0])].map(e => e.textContent.toWellFormed())", selector)

    def labels(self, selector: str = "[role=treeitem]") -> list[str]:
        """How a screen reader names the boxes, up to the first comma: `Class @ path`."""
        return [
            label.split(", ")[0]
            for label in self.ask(f"[...document.querySelectorAll('{selector}')].map(e => e.ariaLabel)")
        ]

    def box(self, label: str) -> WebElement:
        named = "[...document.querySelectorAll('.box')].filter((box) => box.ariaLabel.startsWith(arguments[0]))"
        found = self.ask(named, f"{label}, ")
        assert len(found) == 1, (label, self.labels())
        return found[0]

    def click(self, label: str) -> None:
        """Selects a box; from the script, because the box may lie outside the window."""
        self.ask("arguments[0].querySelector('.head').click()", self.box(label))

    def toggle(self, label: str) -> None:
        self.ask("arguments[0].querySelector('.toggle').click()", self.box(label))

    def is_open(self, label: str) -> bool:
        return self.box(label).get_attribute("aria-expanded") == "true"

    def search(self, words: str) -> None:
        field = self.by_id("query")
        field.clear()
        field.send_keys(words, Keys.ENTER)

    def choose(self, name: str, value: str) -> None:
        Select(self.by_id(name)).select_by_value(value)

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self) -> str:
        return (self.ask("document.activeElement.ariaLabel") or "").split(", ")[0]

    def figure(self, key: str, column: str = "inclusive") -> str:
        """One cell of the panel's cost table; the exact number where both are shown."""
        cell = f"#panel tr[data-key={key}] td.{column}"
        return (self.texts(f"{cell} .exact") or self.texts(cell))[0]

    def milliseconds_to_ready(self) -> float:
        """From the start of loading to a page that can be used."""
        return self.ask("performance.getEntriesByName('ready')[0].startTime")

    def overlaps(self) -> list[list[str]]:
        """Pairs of neighbours that cover each other."""
        return self.ask(OVERLAPS)

    def cut_labels(self) -> list[str]:
        """Boxes with a text that reaches beyond their edge."""
        return self.ask(CUT_LABELS)

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]
