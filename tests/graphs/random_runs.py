"""Runs made up by hypothesis: trees of modules, and programs in which they call each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import CallGraph
from tests.graphs.made_runs import ADD, ADD_INTO, INDEX_ADD_INTO, MadeRun, Token

NAMES = st.lists(st.sampled_from(["layers", "experts", "attn", "mlp", "norm", "0", "10"]), unique=True, max_size=4)
CLASSES = ("Block", "Linear", "Norm", "Other")
JOINS = {"sum": ADD, "in place": ADD_INTO, "rows": INDEX_ADD_INTO}
MAX_CALLS, MAX_DEPTH = 150, 6


@dataclass(frozen=True)
class Step:
    """A call of a child, of all children in turn, or of any module; what it reads, and what becomes of its output."""

    target: int
    whom: str
    reads: str
    joins: str


STEPS = st.builds(
    Step,
    target=st.integers(0, 7),
    whom=st.sampled_from(["all"] * 4 + ["child", "all but one", "anyone"]),  # anyone: a shared module, or a recursion
    reads=st.sampled_from(["last", "last", "input", "fresh"]),
    joins=st.sampled_from(["none", "none", *JOINS]),
)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, str]:
    """Module path -> class, up to three levels; some parents are containers, mostly of one class."""
    classes: dict[str, str] = {}
    level = [("", False)]
    for depth in range(draw(st.integers(1, 3))):
        below = []
        for parent, is_container in level[:4]:
            names = list("01234")[: draw(st.integers(1, 5))] if is_container else draw(NAMES)
            usual = draw(st.sampled_from(CLASSES))
            for name in names:
                path = f"{parent}.{name}" if parent else name
                holds = depth < 2 and not is_container and draw(st.booleans())
                classes[path] = "ModuleList" if holds else draw(st.sampled_from([usual] * 4 + list(CLASSES)))
                below.append((path, holds))
        level = below
    return classes


@dataclass
class _Execution:
    classes: dict[str, str]
    programs: dict[str, list[Step]]
    run: MadeRun
    calls_left: int = MAX_CALLS
    callable_paths: list[str] = field(default_factory=list)

    def forward(self, path: str, depth: int, x: Token) -> Token:
        below, last = self._children(path), x
        for step in self.programs[path] if depth < MAX_DEPTH else ():
            for target in self._targets(step, below):
                if self.calls_left > 0:
                    self.calls_left -= 1
                    token = {"last": last, "input": x}.get(step.reads) or self.run.input()
                    output = self.run.call(target, token, partial(self.forward, target, depth + 1))
                    last = output if step.joins == "none" else self.run.op(JOINS[step.joins], last, output)
        return self.run.op(ADD, last, last) if depth % 2 else last

    def _children(self, path: str) -> list[str]:
        """What a module may call: its children, and those in its containers."""
        below = [other for other in self.classes if other.rpartition(".")[0] == path and other != path]
        return [
            found
            for other in below
            for found in (self._children(other) if self.classes[other] == "ModuleList" else [other])
        ]

    def _targets(self, step: Step, below: list[str]) -> list[str]:
        known = self.callable_paths if step.whom == "anyone" else below
        if not known:
            return []
        chosen = known[step.target % len(known)]
        if step.whom in ("child", "anyone"):
            return [chosen]
        return [path for path in known if step.whom == "all" or path != chosen]


@st.composite
def graphs(draw: st.DrawFn) -> CallGraph:
    """One to three calls of a model, an op outside of it, and perhaps a stage."""
    classes = draw(trees())
    execution = _Execution(
        classes=classes,
        programs={path: draw(st.lists(STEPS, max_size=3)) for path in ["", *classes]},
        run=MadeRun(classes),
        callable_paths=[path for path, name in classes.items() if name != "ModuleList"],
    )
    run = execution.run
    for _ in range(draw(st.integers(1, 3))):
        run.call("", run.input(), partial(execution.forward, "", 0))
    run.op(ADD, run.input(), run.input())
    return run.finish(stages=[("first", (next(iter(classes)),))] if classes and draw(st.booleans()) else [])
