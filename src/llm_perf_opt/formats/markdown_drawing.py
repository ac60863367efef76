"""The picture as a Markdown table, for a pull request or a page without pictures."""

from __future__ import annotations

from llm_perf_opt.core import units
from llm_perf_opt.core.report import Box, GraphView
from llm_perf_opt.formats.box_facts import hidden_text, loops_text
from llm_perf_opt.formats.view_metric import Metric, inclusive, inclusive_text, metric_named, share, share_text, total
from llm_perf_opt.formats.visible_text import shortened, visible

_LONGEST_LABEL = 160
_INDENT = "&emsp;"
_MARKUP = str.maketrans({char: f"&#{ord(char)};" for char in "\\`*_{}[]()#+!|~<>&"})


class MarkdownDrawing:
    """A GitHub table, one row per box of the default picture. `metric` decides what the last column is a share of."""

    suffix = ".md"

    def __init__(self, metric: str = "flops") -> None:
        self._metric = metric_named(metric)

    def render(self, view: GraphView) -> str:
        """A heading, the caption as a list, the table."""
        whole = total(view, self._metric)
        lines = [
            f"| box | loops | stage | instances | calls | FLOPs | bytes moved | params | share of {self._metric} |",
            "| :-- | :-- | :-- | --: | --: | --: | --: | --: | --: |",
        ]
        lines += [self._row(box, depth, whole) for root in view.roots for box, depth in _depths(root, 0)]
        parts = [f"# {_words(view.title)}"]
        if view.caption:
            parts.append("\n".join(f"- {_words(line)}" for line in view.caption))
        return "\n\n".join([*parts, "\n".join(lines)]) + "\n"

    def _row(self, box: Box, depth: int, whole: int | None) -> str:
        hidden = hidden_text(box)
        cells = [
            _INDENT * depth + _code(box.label) + (f" ({hidden})" if hidden else ""),
            loops_text(box),
            _words(box.stage),
            units.format_count(box.instances),
            units.format_count(box.calls),
            *(
                inclusive_text(box, metric).removesuffix(" params")
                for metric in (Metric.FLOPS, Metric.BYTES, Metric.PARAMETERS)
            ),
            share_text(share(inclusive(box, self._metric), whole)),
        ]
        return f"| {' | '.join(cells)} |"


def _depths(box: Box, depth: int) -> list[tuple[Box, int]]:
    rows = [(box, depth)]
    for child in box.children if box.is_open else ():
        rows += _depths(child, depth + 1)
    return rows


def _code(label: str) -> str:
    """A code span, in which nothing acts but a backtick and a bar; those two are written as escapes."""
    text = shortened(visible(label), _LONGEST_LABEL)
    return f"`{text.replace('`', chr(92) + 'x60').replace('|', chr(92) + 'x7c')}`"


def _words(text: str) -> str:
    """Prose that cannot turn into markup."""
    return visible(text).translate(_MARKUP)
