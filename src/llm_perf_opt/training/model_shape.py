"""What a training run asks of a model: its matmuls, its attention and its parameters, read from one traced step.

A decode step has every matmul of a decoder once, with one row. A training step has the same matmuls with a row for
each token, and two more for each in the backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.callgraph.graph import CallGraph
from llm_perf_opt.core.callgraph.queries import module_of
from llm_perf_opt.core.callgraph.records import Parameter
from llm_perf_opt.costs.parameters import untied
from llm_perf_opt.timing.step.engine_blocks import DecoderPart, EngineBlocks, EngineMatmul, Split, engine_blocks

_TABLE_SIDES = 2
_CONTAINER_NAMES = 2  # `model.visual`, `model.language_model`


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder, and the parts that its tokens do not go through.

    `parameters` counts every weight once: the layers, the routed experts among them, the embedding, the head where it
    is not tied to the embedding, and `tower_parameters`, which encode images or sound. `factored_numbers` are the rows
    and columns of all matrices together, which is what Adafactor stores.
    """

    name: str
    blocks: EngineBlocks
    layers: int
    parameters: int
    expert_parameters: int
    embedding_parameters: int
    head_parameters: int  # 0: tied to the embedding
    tower_parameters: int
    factored_numbers: int
    linear_names: tuple[str, ...]  # of the linear layers in a decoder layer, as adapters are told
    learnt_positions: int | None  # rows of a table of positions, beyond which no token can be; None: it has no table

    @property
    def hidden(self) -> int:
        """The width of what goes from layer to layer."""
        return self.blocks.hidden

    @property
    def layer_parameters(self) -> int:
        """Of all decoder layers without the routed experts."""
        apart = self.expert_parameters + self.embedding_parameters + self.head_parameters + self.tower_parameters
        return self.parameters - apart

    @property
    def head(self) -> EngineMatmul | None:
        """The matmul onto the vocabulary."""
        return next((matmul for matmul in self.blocks.matmuls if matmul.part is DecoderPart.HEAD), None)

    @property
    def vocabulary(self) -> int:
        """Logits of one token."""
        return 0 if self.head is None else self.head.columns

    @property
    def layer_matmuls(self) -> tuple[EngineMatmul, ...]:
        """Without the head."""
        return tuple(matmul for matmul in self.blocks.matmuls if matmul.part is not DecoderPart.HEAD)

    @property
    def active_parameters(self) -> int:
        """Those that one token meets, the embedding included, the towers not."""
        routed = sum(block.layers * block.chosen * block.matrix_elements_each for block in self.blocks.experts)
        return self.parameters - self.tower_parameters - self.expert_parameters + routed

    @property
    def matmul_parameters(self) -> int:
        """Weights that multiply every token: with the head and without the look-up of an embedding."""
        return self.blocks.macs_per_token

    @property
    def key_heads(self) -> int:
        """The fewest heads of keys of any layer: tensor-parallel ranks beyond them would hold copies."""
        return min((self.blocks.key_heads(layer) for layer in self.blocks.attentions), default=1)

    @property
    def heads(self) -> int:
        """The fewest attention heads of any layer."""
        return min((layer.heads for layer in self.blocks.attentions), default=1)

    def attention_macs(self, tokens: int, *, is_causal: bool) -> int:
        """Multiply-adds of scores and values in one forward of one sequence; whole: every query meets every key."""
        total = 0
        for layer in self.blocks.attentions:
            pairs = layer.span.pairs(tokens, tokens) if is_causal else tokens * tokens
            total += layer.layers * layer.heads * pairs * (layer.qk_width + layer.v_width)
        return total


def model_shape(graph: CallGraph) -> ModelShape:
    """The shape of a model from the graph of one decode step on one device."""
    blocks = engine_blocks(graph)
    parameters = list(untied(graph.parameters))
    tables = [parameter for parameter in parameters if _is_table(graph, parameter, blocks)]
    layers = sum(layer.layers for layer in blocks.attentions)
    return ModelShape(
        name=graph.model,
        blocks=blocks,
        layers=layers if blocks.states is None else max(layers, blocks.layers),
        parameters=sum(map(_numbers, parameters)),
        expert_parameters=sum(block.layers * block.experts * block.matrix_elements_each for block in blocks.experts),
        embedding_parameters=_numbers(tables[0]) if tables else 0,
        head_parameters=_numbers(tables[-1]) if len(tables) > 1 else 0,
        tower_parameters=sum(_numbers(parameter) for parameter in parameters if _is_tower(graph, parameter)),
        factored_numbers=sum(sum(_sides(parameter)) for parameter in parameters),
        linear_names=_linear_names(graph, blocks, parameters),
        learnt_positions=min((_rows_of_positions(graph, parameters, blocks)), default=None),
    )


def _rows_of_positions(graph: CallGraph, parameters: Sequence[Parameter], blocks: EngineBlocks) -> Iterator[int]:
    """Of the decoder's tables of learnt positions, which are known by their names."""
    for parameter in parameters:
        module = parameter.name.rpartition(".")[0].rpartition(".")[2]
        is_named = module == "wpe" or "position" in module
        is_wide = len(parameter.meta.shape) == _TABLE_SIDES and parameter.meta.shape[1] == blocks.hidden
        if is_named and is_wide and not _is_tower(graph, parameter):
            yield parameter.meta.shape[0]


def _numbers(parameter: Parameter) -> int:
    return math.prod(parameter.meta.shape)


def _sides(parameter: Parameter) -> tuple[int, ...]:
    """Rows and columns of each matrix; a vector is stored whole."""
    shape = parameter.meta.shape
    if len(shape) < _TABLE_SIDES:
        return (math.prod(shape),)
    return (math.prod(shape[:-2]) * (shape[-2] + shape[-1]),)


def _is_table(graph: CallGraph, parameter: Parameter, blocks: EngineBlocks) -> bool:
    """An embedding of token ids, or the head: a matrix with a row for each word of the vocabulary."""
    rows = next((matmul.columns for matmul in blocks.matmuls if matmul.part is DecoderPart.HEAD), 0)
    return len(parameter.meta.shape) == _TABLE_SIDES and parameter.meta.shape[0] == rows > 0


def _linear_names(graph: CallGraph, blocks: EngineBlocks, parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """The last names of the modules with a matrix in a numbered layer of the decoder; routers are never adapted."""
    routers = {matmul.columns for matmul in blocks.matmuls if matmul.part is DecoderPart.ROUTER}
    names = {
        module_of(parameter.name).rpartition(".")[2]
        for parameter in parameters
        if len(parameter.meta.shape) == _TABLE_SIDES
        and parameter.meta.shape[0] not in routers
        and any(part.isdigit() for part in parameter.name.split("."))
        and "Linear" in graph.module_types.get(module_of(parameter.name), "")
        and not _is_tower(graph, parameter)
    }
    return tuple(sorted(names))


def _is_tower(graph: CallGraph, parameter: Parameter) -> bool:
    """Whether nothing near it runs for a token that follows text: an encoder of images or sound."""
    owner = module_of(parameter.name)
    container = ".".join(owner.split(".")[:_CONTAINER_NAMES])
    called = (path for path, calls in graph.call_counts.items() if calls)
    return not any(path in (owner, container) or path.startswith(f"{container}.") for path in called)


def is_gated(blocks: EngineBlocks) -> bool:
    """Whether the MLP of the dense layers has a gate: its first matmul is then twice as wide as its last is deep."""
    wide = [matmul.columns for matmul in blocks.matmuls if _is_mlp(matmul, Split.COLUMNS)]
    deep = [matmul.depth for matmul in blocks.matmuls if _is_mlp(matmul, Split.ROWS)]
    return bool(wide and deep) and wide[0] == 2 * deep[0]


def _is_mlp(matmul: EngineMatmul, split: Split) -> bool:
    return matmul.part is DecoderPart.MLP and matmul.split is split
