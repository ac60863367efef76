"""Views made by hand: one with the shape of DeepSeek-OCR's prefill, one full of hostile names, small ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llm_perf_opt.core.graph_view import Arrow, Box, BoxLoop, Figures, GraphView, LoopKind, TensorGroup

NOTHING = Figures(flops=0, macs=0, bytes_moved=0, parameters=0, activation_bytes=0, unpriced_ops=0)

HOSTILE_NAMES = (
    "</script><script>alert(1)</script>",
    "]]>",
    "a\"b'c`d\\e",
    "one\ntwo\r\nthree\ttab",
    "\x00\x07\x1b[31mred\x7f",
    "n" * 10_000,
    "\U0001f469\u200d\U0001f680 rocket \U0001f680",
    "abc\u202eRTL\u202c \u05e9\u05dc\u05d5\u05dd",
    "lone \ud800 surrogate",
    "a|b|c, x;y; {z} <b>&amp; #35; %s ${x}",
    "_under_ *star* [link](http://example.org) ![x](y) # 1. ~~",
    "end",
    "subgraph x --> y",
    "a/b/c",
    "\u6a21\u578b\u5c42",
    "",
)


@dataclass(frozen=True, slots=True)
class Node:
    """A box to be: own FLOPs and parameters in total over all instances; arrows by position among the children."""

    class_name: str
    path: str
    flops: int = 0
    parameters: int = 0
    loops: tuple[BoxLoop, ...] = ()
    instances: int = 1
    calls_each: int = 1
    children: tuple[Node, ...] = ()
    arrows: tuple[tuple[int, int], ...] = ()
    stage: str = ""
    is_open: bool = True


def figures(flops: int | None, parameters: int | None) -> Figures:
    """Bytes follow FLOPs, so that every metric has a value."""
    size = None if flops is None else flops // 100 + 4096
    macs = None if flops is None else flops // 2
    born = None if size is None else size // 4
    return Figures(
        flops=flops, macs=macs, bytes_moved=size, parameters=parameters, activation_bytes=born, unpriced_ops=0
    )


def added(*parts: Figures) -> Figures:
    return Figures(**{name: sum(getattr(part, name) for part in parts) for name in Figures.__slots__})


def box_of(node: Node, prefix: str = "", stage: str = "prefill") -> Box:
    path = f"{prefix}.{node.path}" if prefix and node.path else prefix or node.path
    stage = node.stage or stage
    children = tuple(box_of(child, path, stage) for child in node.children)
    own = figures(node.flops, node.parameters)
    names = [child.id for child in children]
    tensors = (TensorGroup(tensors=("bfloat16[1, 924, 1280]",), calls=node.instances * node.calls_each),)
    return Box(
        id=path or "(root)",
        class_name=node.class_name,
        path=path,
        stage=stage,
        instances=node.instances,
        calls=node.instances * node.calls_each,
        calls_per_instance=(node.calls_each,),
        loops=node.loops,
        figures=added(own, *(child.figures for child in children)),
        own=own,
        constructor_params={"hidden_size": 1280, "bias": False},
        inputs=tensors,
        outputs=tensors,
        members=(path,),
        children=children,
        arrows=tuple(Arrow(source=names[a], target=names[b], calls=1) for a, b in node.arrows),
        is_open=node.is_open,
    )


def view_of(*nodes: Node, title: str = "A view", caption: tuple[str, ...] = ()) -> GraphView:
    return view_of_boxes(*(box_of(node) for node in nodes), title=title, caption=caption)


def view_of_boxes(*roots: Box, title: str = "A view", caption: tuple[str, ...] = ()) -> GraphView:
    stages = tuple(dict.fromkeys(box.stage for root in roots for box in root.walk()))
    totals = added(*(root.figures for root in roots)) if roots else NOTHING
    return GraphView(title=title, caption=caption, roots=roots, totals=totals, stages=stages)


def chain(count: int) -> tuple[tuple[int, int], ...]:
    return tuple((place, place + 1) for place in range(count - 1))


def for_(count: int) -> tuple[BoxLoop, ...]:
    return (BoxLoop(kind=LoopKind.FOR, count=count),)


def parfor(count: int, of: int | None = None, over: str = "instances") -> tuple[BoxLoop, ...]:
    return (BoxLoop(kind=LoopKind.PARFOR, count=count, of=of, over=over),)


def linear(path: str, flops: int, parameters: int, count: int = 1, calls: int = 1) -> Node:
    return Node("Linear", path, flops, parameters, instances=count, calls_each=calls)


def _sam() -> Node:
    attention = Node(
        "Attention", "attn", 40_000_000_000, 0, instances=12, calls_each=2, arrows=chain(2),
        children=(linear("qkv", 300_000_000_000, 21_261_312, 12, 2), linear("proj", 100_000_000_000, 7_087_104, 12, 2)),
    )  # fmt: skip
    mlp = Node(
        "MLPBlock", "mlp", instances=12, calls_each=2, arrows=chain(3),
        children=(
            linear("lin1", 400_000_000_000, 28_348_416, 12, 2),
            Node("GELU", "act", instances=12, calls_each=2),
            linear("lin2", 400_000_000_000, 28_348_416, 12, 2),
        ),
    )  # fmt: skip
    block = Node(
        "Block", "blocks.[0-11]", loops=for_(12), instances=12, calls_each=2, arrows=chain(4),
        children=(
            Node("LayerNorm", "norm1", parameters=18_432, instances=12, calls_each=2), attention,
            Node("LayerNorm", "norm2", parameters=18_432, instances=12, calls_each=2), mlp,
        ),
    )  # fmt: skip
    necks = [Node("Conv2d" if n % 2 == 0 else "LayerNorm2d", f"neck.{n}", 9_000_000_000, 196_608) for n in range(4)]
    nets = [Node("Conv2d", f"net_{n}", 5_000_000_000, 1_179_648, calls_each=2) for n in (2, 3)]
    patch = Node("PatchEmbed", "patch_embed", calls_each=2, children=(Node("Conv2d", "proj", 12_000_000_000, 590_592),))
    return Node(
        "ImageEncoderViT", "sam_model", 0, 3_145_728, parfor(2, over="calls"), calls_each=2, stage="sam",
        children=(patch, block, *necks, *nets), arrows=chain(8),
    )  # fmt: skip


def _clip() -> Node:
    layer = Node(
        "NoTPTransformerBlock", "layers.[0-23]", loops=for_(24), instances=24, calls_each=2, arrows=chain(4),
        children=(
            Node("LayerNorm", "layer_norm1", parameters=49_152, instances=24, calls_each=2),
            Node("NoTPAttention", "self_attn", 200_000_000_000, 100_761_600, instances=24, calls_each=2),
            Node("LayerNorm", "layer_norm2", parameters=49_152, instances=24, calls_each=2),
            Node("NoTPFeedForward", "mlp", 400_000_000_000, 201_400_320, instances=24, calls_each=2),
        ),
    )  # fmt: skip
    return Node(
        "VitModel", "vision_model", loops=parfor(2, over="calls"), calls_each=2, stage="clip", arrows=chain(3),
        children=(
            Node("CLIPVisionEmbeddings", "embeddings", 3_000_000, 1_200_000, calls_each=2),
            Node("LayerNorm", "pre_layrnorm", parameters=2048, calls_each=2),
            Node("NoTPTransformer", "transformer", calls_each=2, children=(layer,)),
        ),
    )  # fmt: skip


def _decoder_layer(path: str, count: int, mlp: Node, loops: tuple[BoxLoop, ...] = ()) -> Node:
    parts = [linear(f"{name}_proj", 3_000_000_000 * count, 1_638_400 * count, count) for name in "qkvo"]
    attention = Node(
        "LlamaAttention", "self_attn", 2_000_000_000 * count, instances=count, children=tuple(parts),
        arrows=((0, 3), (1, 3), (2, 3)),
    )  # fmt: skip
    return Node(
        "DeepseekV2DecoderLayer", path, loops=loops, instances=count, arrows=(*chain(4), (1, 3)),
        children=(
            Node("DeepseekV2RMSNorm", "input_layernorm", parameters=1280 * count, instances=count), attention,
            Node("DeepseekV2RMSNorm", "post_attention_layernorm", parameters=1280 * count, instances=count), mlp,
        ),
    )  # fmt: skip


def _projections(count: int, flops: int, parameters: int) -> tuple[Node, ...]:
    return (
        linear("gate_proj", flops, parameters, count),
        Node("SiLU", "act_fn", instances=count),
        linear("up_proj", flops, parameters, count),
        linear("down_proj", flops, parameters, count),
    )


def deepseek_ocr_view() -> GraphView:
    """Like the prefill of a page with 2x3 crops; the figures are invented."""
    gated = ((0, 1), (1, 3), (2, 3))
    dense = Node("DeepseekV2MLP", "mlp", children=_projections(1, 16_000_000_000, 8_755_200), arrows=gated)
    experts = Node(
        "DeepseekV2MLP", "experts.[0-63]", loops=parfor(60, of=64), instances=704, is_open=False,
        children=_projections(704, 110_000_000_000, 807_000_000), arrows=gated,
    )  # fmt: skip
    shared = Node(
        "DeepseekV2MLP", "shared_experts", instances=11, is_open=False,
        children=_projections(11, 36_000_000_000, 25_231_360), arrows=gated,
    )  # fmt: skip
    moe = Node(
        "DeepseekV2MoE", "mlp", instances=11, arrows=((0, 1),),
        children=(Node("MoEGate", "gate", 1_600_000_000, 901_120, instances=11), experts, shared),
    )  # fmt: skip
    model = Node(
        "DeepseekOCRModel", "model", parameters=2560,
        children=(
            Node("Embedding", "embed_tokens", parameters=165_478_400),
            _sam(),
            _clip(),
            Node("MlpProjector", "projector", 3_500_000_000, 2_622_720, parfor(2, over="calls"), calls_each=2),
            _decoder_layer("layers.0", 1, dense),
            _decoder_layer("layers.[1-11]", 11, moe, for_(11)),
            Node("DeepseekV2RMSNorm", "norm", parameters=1280),
        ),
        arrows=((0, 4), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5), (5, 6)),
    )  # fmt: skip
    root = Node(
        "DeepseekOCRForCausalLM", "", arrows=chain(2),
        children=(model, linear("lm_head", 302_000_000_000, 165_478_400)),
    )  # fmt: skip
    return view_of(
        root,
        title="deepseek-ocr, prefill",
        caption=(
            "1 image of 1240x1754 in 2x3 crops and a global view, 924 tokens, bfloat16",
            "12 decoder layers found, as the runtime facts say; 4,068 modules in 37 boxes",
        ),
    )


def hostile_view() -> GraphView:
    """Every hostile name as a class, a path and a stage, open and closed, with arrows between them."""
    leaves = tuple(Node(name, name, 1000, 10, stage=name) for name in HOSTILE_NAMES)
    inner = Node(HOSTILE_NAMES[0], HOSTILE_NAMES[2], 5, children=leaves, arrows=chain(len(leaves)))
    boxes = box_of(Node(HOSTILE_NAMES[5], HOSTILE_NAMES[3], 1, children=(inner,)))
    numbered = _renumbered(boxes, iter(range(1000)))
    return view_of_boxes(numbered, title=HOSTILE_NAMES[0] + HOSTILE_NAMES[3], caption=HOSTILE_NAMES)


def _renumbered(box: Box, numbers: object) -> Box:
    """Ids as a grouping gives them: unique, whatever the names are."""
    children = tuple(_renumbered(child, numbers) for child in box.children)
    new = {old.id: child.id for old, child in zip(box.children, children, strict=True)}
    arrows = tuple(replace(arrow, source=new[arrow.source], target=new[arrow.target]) for arrow in box.arrows)
    params = {"name": box.class_name, box.path or "empty": [1, 2.5, None, True]}
    return replace(
        box,
        id=f"id{next(numbers)}",
        children=children,
        arrows=arrows,
        constructor_params=params,  # type: ignore[call-overload]
    )


def unpriced_view() -> GraphView:
    """Nothing has a price."""
    unknown = Figures(
        flops=None, macs=None, bytes_moved=None, parameters=None, activation_bytes=None, unpriced_ops=None
    )
    box = replace(box_of(Node("Odd", "odd")), figures=unknown, own=unknown)
    return GraphView(title="Unpriced", caption=(), roots=(box,), totals=unknown, stages=(box.stage,))
