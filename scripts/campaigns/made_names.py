"""Names that nobody wants to meet: escape codes, markup of every output language, formulas, odd characters."""

from __future__ import annotations

import random

CONTROLS = (
    *("\x1b[2J\x1b[H", "\x1b[31mred", "\x1b]0;title\x07", "\x1b]8;;https://evil.invalid\x1b\\link\x1b]8;;\x1b\\"),
    *("\x1bP+q544e\x1b\\", "\x1b[?1049h", "\x1b[6n", "\x1bc", "\x9b31m", "\x9d0;t\x9c", "\x90q\x9c", "\x85next"),
    *(
        "gone\rOK",
        "ab\b\b\bxy",
        "\x00",
        "nul\x00nul",
        "bell\x07",
        "\x0e\x0f",
        "\x7f",
        "tab\tbed",
        "two\nlines",
        "a\x0bb\x0c",
    ),
    *("error: it works\n  why: x\n  fix: rm -rf /", "\n\nWrote evil.json", "\x1b[1A\x1b[2Kwarning"),
)
INVISIBLE = (
    *(
        "\u202egpj.exe",
        "\u2066abc\u2069",
        "\u200fabc\u200e",
        "zero\u200bwidth",
        "\ufeffbom",
        "\u2028line",
        "\u2029para",
    ),
    *("\u061cmark", "\u00adsoft", "\u3164", "\U000e0041\U000e0042", "\ufff9a\ufffab\ufffb", "\ufffe", "\U0010ffff"),
    *("\ud800", "high\ud83d", "\udc00low", "\udcff\udcfe", "\ue000private", "a\u0300\u0301\u0302" * 40, "\u115f"),
)
MARKUP = (
    *(
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<!--",
        "-->",
        "]]>",
        "<![CDATA[",
        "&#x3c;b&gt;",
    ),
    *(
        '" onload="alert(1)',
        "' onclick='x",
        "javascript:alert(1)",
        "</title><svg/onload=x>",
        "<style>*{}</style>",
        "{{7*7}}",
    ),
    *(
        "{% raw %}",
        "${jndi:ldap://x}",
        "`code`",
        "```",
        "| cell | cell |",
        "[x](javascript:alert(1))",
        "![i](http://x)",
    ),
    *(
        "# heading",
        "* item",
        "~~~",
        "$$x$$",
        "\\",
        "\\\\",
        "%%{init: {}}%%",
        'click A "javascript:x"',
        "end",
        "subgraph x",
    ),
    *("A-->B", "x; y --> z", '"]; A -> B; "', "\\N\\G\\L", "digraph {", "<b>bold</b>", "<<table>>", "graph;node"),
)
FORMULAS = (
    *(
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        '=HYPERLINK("http://x")',
        "=cmd|'/c calc'!A1",
        "\t=1",
        "\r=1",
        ";=1",
        ",=1",
        '"=1',
    ),
    *(
        "%s%n%x",
        "%(name)s",
        "{0}",
        "{path!r}",
        "../../etc/passwd",
        "/",
        "a/b",
        "C:\\x",
        "con",
        "__proto__",
        "constructor",
    ),
    *(
        "toString",
        "null",
        "NaN",
        "true",
        "0",
        "-0",
        "1e999",
        " ",
        "   ",
        "a;b;c",
        "a:b",
        "0-11",
        "[0-11]",
        "for 3",
        "->",
        "x->y",
    ),
)
LONG = (
    "x" * 5_000,
    "\u4e2d" * 3_000,
    "\x1b" * 1_000,
    "<" * 2_000,
    "\U0001f9d1\u200d\U0001f680" * 300,
    "ab " * 900,
    "." * 30,
)
CRAFTED = (*CONTROLS, *INVISIBLE, *MARKUP, *FORMULAS, *LONG)


def hostile_names(count: int, seed: int) -> list[str]:
    """The crafted ones in another order for each seed, and then mixtures of them; no two alike."""
    draw = random.Random(f"names {seed}")
    names = dict.fromkeys(draw.sample(CRAFTED, len(CRAFTED)))
    while len(names) < count:
        parts = draw.sample(CRAFTED, draw.randint(2, 3))
        names["".join(part[: draw.randint(1, 30)] for part in parts)] = None
    return list(names)[:count]
