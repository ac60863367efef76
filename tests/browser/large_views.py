"""Views of the size that a page must still open at once."""

from __future__ import annotations

from itertools import pairwise

from llm_perf_opt.core.graph_view import Arrow, Box, Figures, GraphView, TensorGroup


def _figures(scale: int) -> Figures:
    return Figures(
        flops=2 * scale, macs=scale, bytes_moved=4 * scale, parameters=scale, activation_bytes=scale, unpriced_ops=0
    )


def _times(figures: Figures, count: int) -> Figures:
    return Figures(**{name: getattr(figures, name) * count for name in Figures.__slots__})


def unfolded_view(layers: int, experts: int) -> GraphView:
    """Nothing is grouped: one box for the model, one for each layer, four for each expert."""
    own = _figures(1_000_000)
    blocks = tuple(_layer(layer, experts, own) for layer in range(layers))
    root = _box("Model", "model", blocks, own, count=layers * experts * 3)
    return GraphView(
        title="A large trace", caption=("nothing is folded",), roots=(root,), totals=root.figures, stages=("prefill",)
    )


def _layer(layer: int, experts: int, own: Figures) -> Box:
    path = f"model.layers.{layer}"
    names = [f"{path}.mlp.experts.{expert}" for expert in range(experts)]
    inside = tuple(
        _box(
            "Expert",
            name,
            tuple(_box("Linear", f"{name}.{leaf}_proj", (), own) for leaf in ("gate", "up", "down")),
            own,
            3,
        )
        for name in names
    )
    return _box("DecoderLayer", path, inside, own, count=3 * experts)


def _box(class_name: str, path: str, children: tuple[Box, ...], own: Figures, count: int = 1) -> Box:
    tensors = (TensorGroup(tensors=(f"bfloat16[{len(path)}, 7168]",), calls=4),)
    nothing = _times(own, 0)
    arrows = pairwise(children)
    return Box(
        id=path,
        class_name=class_name,
        path=path,
        stage="prefill",
        instances=1,
        calls=4,
        calls_per_instance=(4,),
        loops=(),
        figures=_times(own, count),
        own=nothing if children else own,
        constructor_params={"in_features": len(path), "out_features": 2048, "bias": False},
        inputs=tensors,
        outputs=tensors,
        members=(path,),
        children=children,
        arrows=tuple(Arrow(source=one.id, target=two.id, calls=4) for one, two in arrows),
        is_open=True,
    )
