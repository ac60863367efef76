"""Matrix work in closed form: what each product costs from its sizes alone. One multiply-add is two FLOPs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from llm_perf_opt.core.source_figures import WorkFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixWork:
    """One kind of product that one module does, over all its calls.

    `path` is the module in whose forward it runs; a `*` in it stands for every routed expert in use. `outputs` are
    elements put out, `weights` elements of the matrix that it multiplies with in one forward. `calls` is None where it
    depends on the routing.
    """

    path: str
    kind: str  # "linear", "conv", "attention scores", ...
    family: WorkFamily
    flops: int
    outputs: int
    calls: int | None
    weights: int = 0

    @property
    def operator(self) -> str:
        """Kind and place with the layer left out: `linear layers.self_attn.q_proj`."""
        place = re.sub(r"\.(\d+|\*)(?=\.|$)", "", self.path)
        return f"{self.kind} {place.removeprefix('model.')}"


def linear(path: str, rows: int, inputs: int, outputs: int, calls: int | None) -> MatrixWork:
    """`rows` vectors through one matrix; a bias adds no multiply-add."""
    plain = product(path, "linear", rows=rows, inner=inputs, columns=outputs, calls=calls)
    return replace(plain, weights=inputs * outputs)


def product(path: str, kind: str, *, rows: int, inner: int, columns: int, calls: int | None) -> MatrixWork:
    """Matrix products whose rows, over all of them, number `rows`."""
    return MatrixWork(
        path=path,
        kind=kind,
        family=WorkFamily.PRODUCT,
        flops=2 * rows * inner * columns,
        outputs=rows * columns,
        calls=calls,
    )


def convolution(path: str, positions: int, inputs: int, outputs: int, kernel: int, calls: int) -> MatrixWork:
    """A square kernel at `positions` places of the output."""
    return MatrixWork(
        path=path,
        kind="conv",
        family=WorkFamily.CONVOLUTION,
        flops=2 * positions * inputs * outputs * kernel * kernel,
        outputs=positions * outputs,
        calls=calls,
        weights=inputs * outputs * kernel * kernel,
    )


def fused_attention(path: str, *, queries: int, pairs: int, width: int, calls: int) -> MatrixWork:
    """Scores and weighted sum in one op: `4 * pairs * width`, `width` being that of all heads together.

    Every pair of query and key counts, also where a causal mask hides it.
    """
    return MatrixWork(
        path=path,
        kind="fused attention",
        family=WorkFamily.ATTENTION,
        flops=4 * pairs * width,
        outputs=queries * width,
        calls=calls,
    )


def eager_attention(
    path: str, *, queries: int, pairs: int, heads: int, width: int, calls: int
) -> tuple[MatrixWork, MatrixWork]:
    """The same FLOPs as `fused_attention` in two products, of which the first puts out the score matrix."""
    scores, values = (
        MatrixWork(
            path=path, kind=kind, family=WorkFamily.PRODUCT, flops=2 * pairs * width, outputs=outputs, calls=calls
        )
        for kind, outputs in (("attention scores", pairs * heads), ("attention values", queries * width))
    )
    return scores, values


def total_flops(work: Iterable[MatrixWork]) -> int:
    """FLOPs of all of it."""
    return sum(piece.flops for piece in work)


def module_flops(work: Iterable[MatrixWork], path: str) -> int:
    """FLOPs of one module and everything inside it; the empty path is the whole model."""
    return total_flops(piece for piece in work if not path or f"{piece.path}.".startswith(f"{path}."))


def active_weights(work: Iterable[MatrixWork]) -> int:
    """Elements of the matrices and kernels in use; one that is used again, for other views, counts once."""
    return sum({piece.path: piece.weights for piece in work if piece.weights}.values())


def counted_activations(work: Iterable[MatrixWork]) -> int:
    """Elements put out by products and convolutions, which is what fvcore counts; fused attention it does not see."""
    return sum(piece.outputs for piece in work if piece.family is not WorkFamily.ATTENTION)
