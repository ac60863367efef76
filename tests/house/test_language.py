"""The language of the house: the words of the field, in every string, docstring, comment and page.

`python tests/house/test_language.py [PATH ...]` lists what is left, a line each.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHRASES = {
    r"\bso many\b|\bthose of\b|\bthat of\b|\bwhose\b": "name the thing: `n_tokens`, the decode step's",
    r"\bbeside\b": "next to",
    r"for want of": "because there is no",
    r"still at it": "still running",
    r"(?<!dot )(?<!dot-)(?<!inner )(?<!outer )(?<!Cartesian )\bproducts?\b": "matmul, GEMM",
    r"\bexchang(e|es|ed|ing)\b": "collective, all-reduce, all-to-all, communication",
    r"tokens/s and GPU|/s and GPU": "per GPU",
    r"keeps? the promise|break the promise|promised (TTFT|TPOT)": "meets the SLO",
    r"stopped for want|want of cache": "preempted (KV cache full)",
    r"what limits": "bottleneck",
    r"if it fitted|\bshort \d": "if it fit; over",
    r"pages/s to TTFT": "pages/s (prefill only)",
    r"eager as written|fused as engines": "eager PyTorch; engine kernels (fused, CUDA graphs)",
    r"nothing beats|beaten by nothing": "lower bound",
    r"edges? of the band|at both edges|both edges": "low and high estimate",
    r"rest between kernels|rests between": "gap between kernels",
    r"\bparted\b|whole on every rank|spread over (the )?ranks": "split, replicated, sharded",
    r"without a witness": "every figure is checked against an independent source",
    r"stands? beside|lies? below|lies? above|held against": "is next to, is below, is compared with",
}
ALLOWED = {  # pages and strings that must quote a phrase: the path, and why
    "tests/house/test_language.py": "the list itself",
    "docs/evidence/plan.md": "the wording of the original plan",
    "docs/reference/older-names.md": "the wording of the original plan",
}
COMMON = ("one", "found")  # identifiers that say nothing about what they hold
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in PHRASES.items()]


def python_text(path: Path) -> Iterator[tuple[int, str]]:
    """Strings of more than one word, parts of f-strings, docstrings and comments, with their lines."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def plain_text(path: Path) -> Iterator[tuple[int, str]]:
    """Every line of a page or a template."""
    yield from enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)


def readable_files(*, root: Path = ROOT) -> list[Path]:
    """What a user or a contributor reads: the package, the pages, and what the repository shows first."""
    source = root / "src" / "llm_perf_opt"
    kinds = ("*.html", "*.j2", "*.js", "*.css")
    templates = [path for kind in kinds for path in source.rglob(kind) if "vendor" not in path.parts]
    first = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    return sorted([*source.rglob("*.py"), *templates, *(root / "docs").rglob("*.md"), *first])


def phrases_in(path: Path) -> list[str]:
    """`path:line: phrase -> what to write`, for every phrase of the table in a file."""
    name = path.relative_to(ROOT).as_posix()
    if name in ALLOWED:
        return []
    text = python_text(path) if path.suffix == ".py" else plain_text(path)
    return [
        f"{name}:{line}: {match.group(0)!r} -> {instead}"
        for line, words in text
        for pattern, instead in PATTERNS
        for match in pattern.finditer(words)
    ]


def identifier_uses(name: str) -> int:
    """How often an identifier is used in the package, as a variable or a parameter."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "src").rglob("*.py"))
    return sum(name == getattr(node, "id", getattr(node, "arg", None)) for tree in trees for node in ast.walk(tree))


def test_no_phrase_of_the_style_table_is_left() -> None:
    assert [row for path in readable_files() for row in phrases_in(path)] == []


@pytest.mark.parametrize("name", COMMON)
def test_identifiers_say_what_they_hold(name: str) -> None:
    assert identifier_uses(name) < 60


def test_a_phrase_is_found_where_it_stands(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text('X = "the bytes of it, whose sum is asked"  # so many tokens\n', encoding="utf-8")
    words = [words for _, words in python_text(page)]
    assert [bool(PATTERNS[0][0].search(each)) for each in words] == [True, True]


if __name__ == "__main__":
    wanted = tuple(Path(word).resolve() for word in sys.argv[1:]) or (ROOT,)
    for file in readable_files():
        if any(file.is_relative_to(place) for place in wanted):
            sys.stdout.writelines(row + "\n" for row in phrases_in(file))
