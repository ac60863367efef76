"""A small decoder with a tower, as the call graph of one prefill."""

from __future__ import annotations

from llm_perf_opt.core.callgraph import CallGraph
from tests.graphs.made_runs import ADD, MadeRun, Token, made

LAYER = {
    "norm": "RMSNorm",
    "attn": "Attention",
    "attn.q": "Linear",
    "mlp": "MLP",
    "mlp.up": "Linear",
    "mlp.act": "SiLU",
}
CLASSES = {
    "tower": "Tower",
    "tower.proj": "Linear",
    "layers": "ModuleList",
    **{f"layers.{n}": "DecoderLayer" for n in range(3)},
    **{f"layers.{n}.{name}": class_name for n in range(3) for name, class_name in LAYER.items()},
    "head": "Linear",
}


def decoder(stages: tuple[tuple[str, tuple[str, ...]], ...] = (("vision", ("tower",)),)) -> CallGraph:
    """A tower with one matmul; three layers of norm, attention and a feed-forward part, each leaf one matmul."""

    def forward(run: MadeRun, token: Token) -> Token:
        token = run.call("tower", token, lambda inner: run.call("tower.proj", inner))
        for n in range(3):
            token = run.call(f"layers.{n}", token, lambda inner, n=n: layer(run, n, inner))
        return run.call("head", token)

    def layer(run: MadeRun, n: int, token: Token) -> Token:
        normed = run.call(f"layers.{n}.norm", token)
        seen = run.call(f"layers.{n}.attn", normed, lambda inner: run.call(f"layers.{n}.attn.q", inner))
        fed = run.call(
            f"layers.{n}.mlp", seen, lambda inner: run.chain([f"layers.{n}.mlp.up", f"layers.{n}.mlp.act"], inner)
        )
        return run.op(ADD, fed, token)

    return made(CLASSES, forward, stages=list(stages))
