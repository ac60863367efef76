"""How a published checkpoint stores its weights: the `quantization_config` of its folder as formats by parameter.

Patterns are written in the names of the checkpoint. A model in transformers may spell a module otherwise: the experts
of a layer are one stack, and a language model inside a larger one has another prefix.

Each method says in its own words which modules it converted. Here that becomes rules, tried in order on every matrix
of the traced model: a format, the modules it is for, and those it leaves out. Routers always keep their type, and so
does the output head unless a method lists what it leaves out and the head is not in the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from llm_perf_opt.core.callgraph import CallGraph
from llm_perf_opt.core.callgraph.queries import Role, module_of, weight_matrices
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.core.tensor_formats import FP8, StoredFormats, weight_format

_WRAPPERS = ("model", "language_model")
# Stack -> what its experts call the matrices in it, in the checkpoints there are.
_EXPERT_NAMES = {"gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"), "down_proj": ("down_proj", "w2")}


def spellings(path: str, *, is_stack: bool) -> tuple[str, ...]:
    """The names under which a checkpoint may know a module, its own first; of a stack also its first expert's names."""
    return tuple(dict.fromkeys(name for form in _forms(path, is_stack) for name in _prefixed(form)))


def _forms(path: str, is_stack: bool) -> Iterator[str]:
    yield path
    if is_stack:
        experts, _, name = path.rpartition(".")
        yield experts
        for matrix in _EXPERT_NAMES.get(name, (name,)):
            yield f"{experts}.0.{matrix}"


def _prefixed(path: str) -> Iterator[str]:
    yield path
    names = path.split(".")
    while len(names) > 1 and names[0] in _WRAPPERS:
        names = names[1:]
    bare = ".".join(names)
    yield bare
    yield f"model.{bare}"
    yield f"backbone.{bare}"  # hybrid and state space models have checkpoints that are older than their code here
    if path.startswith("model.language_model."):
        yield f"language_model.model.{bare}"


def names_module(pattern: str, names: Sequence[str]) -> bool:
    """Whether one of the names is meant: by `re:` and an expression, by `*`, or as a whole path, its end or beginning.

    `mlp.gate` means every module of that name and what is inside it, and not `mlp.gate_proj`.
    """
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(name, wild) for name in names for wild in (pattern, f"{pattern}.*", f"*.{pattern}"))
    return any(f".{pattern}." in f".{name}." for name in names)


Block = Mapping[str, Any]
ANY_LINEAR = "Linear"
MODELOPT_FILE = "hf_quant_config.json"
_PRODUCER = "modelopt"
_MX_GROUP = 32  # values that share a scale in the microscaling formats
_SHOWN = 3  # patterns in a warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A stored format and the modules it is for: `Linear`, or patterns of module names."""

    format: str
    targets: tuple[str, ...] = (ANY_LINEAR,)
    excluded: tuple[str, ...] = ()
    roles: tuple[Role, ...] = (Role.LINEAR, Role.EXPERTS)

    def claims(self, role: Role, names: Sequence[str]) -> bool:
        """Whether a matrix is stored so; `names` are the spellings of its module."""
        if role not in self.roles or any(names_module(pattern, names) for pattern in self.excluded):
            return False
        return ANY_LINEAR in self.targets or any(names_module(target, names) for target in self.targets)


_LISTED = (Role.LINEAR, Role.EXPERTS, Role.HEAD)  # of methods that list every module they leave out


def stored_formats(folder: Path, fields: Block, graph: CallGraph, *, has_all_layers: bool = True) -> StoredFormats:
    """What the folder says of its weights; nothing where it has no such block.

    A method that is not known here, and one that fits no weight of the model, is a warning: the weights then count in
    the type of the trace. So are exclusions that fit nothing, unless they may be of layers that another stage holds.
    """
    block = _block(folder, fields)
    if block is None:
        return StoredFormats()
    method = _method(block)
    read = METHODS.get(method)
    if read is None:
        return _unread(method, f"it is none of: {', '.join(METHODS)}")
    try:
        rules = tuple(read(block))
        for rule in rules:
            weight_format(rule.format)
        weights, cache = _assigned(rules, graph), _cache(block)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, re.error, PerfOptError) as error:
        return _unread(method, f"{type(error).__name__}: {str(error)[:200]}")
    if not weights:
        return _unread(method, "none of its rules fits a weight of this model")
    warnings = tuple(_unmatched(rules, graph)) if has_all_layers else ()
    return StoredFormats(origin=method, weights=weights, cache=cache, warnings=warnings)


def _unmatched(rules: Sequence[Rule], graph: CallGraph) -> Iterator[str]:
    """Exclusions that fit no module and no parameter, as of modules that the code names otherwise or does not build."""
    excluded = tuple(dict.fromkeys(pattern for rule in rules for pattern in rule.excluded))
    stacks = [name for name, role in weight_matrices(graph).items() if role is Role.EXPERTS]
    paths = (*graph.module_types, *(parameter.name for parameter in graph.parameters))
    names = [name for path in paths for name in spellings(path, is_stack=False)] if excluded else []
    names += [name for path in stacks for name in spellings(path, is_stack=True)]
    unknown = [pattern for pattern in excluded if not names_module(pattern, names)]
    if unknown:
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        yield (
            f"{len(unknown):,} of {len(excluded):,} exclusions of the quantization_config fit nothing in this model "
            f"({', '.join(unknown[:_SHOWN])}{more}). A module that has another name here counts as quantised."
        )


def _method(block: Block) -> str:
    """Its own name; bitsandbytes once wrote none."""
    if block.get("load_in_8bit") or block.get("load_in_4bit"):
        return "bitsandbytes"
    return str(block.get("quant_method", "without a name")).lower()


def _unread(method: str, why: str) -> StoredFormats:
    return StoredFormats(
        origin=method,
        warnings=(
            f"The quantization_config ({method}) of the checkpoint was not understood: {why}. "
            "All weights are counted in the type of the trace; --weights FORMAT says what is stored.",
        ),
    )


def _block(folder: Path, fields: Block) -> Block | None:
    """Of the configuration, of its language model, or the file that NVIDIA's tool writes next to it."""
    text = fields.get("text_config")
    for holder in (fields, text if isinstance(text, dict) else {}):
        for key in ("quantization_config", "compression_config"):
            if isinstance(block := holder.get(key), dict):
                return block
    file = folder / MODELOPT_FILE
    if not file.is_file():
        return None
    document = read_foreign_json(file, MODEL_FILE)
    stored = document.get("quantization") if isinstance(document, dict) else None
    if not isinstance(stored, dict):
        raise UsageError(
            f"{file} does not say how weights are quantised.",
            why='it has no object "quantization"',
            fix="fetch the file again, or remove it",
        )
    return {**stored, "quant_method": _PRODUCER}


def _assigned(rules: Sequence[Rule], graph: CallGraph) -> dict[str, str]:
    """Parameter name -> format of the first rule that claims it; rules that name modules come before `Linear`."""
    ordered = sorted(rules, key=lambda rule: ANY_LINEAR in rule.targets)
    formats: dict[str, str] = {}
    for name, role in weight_matrices(graph).items():
        names = spellings(name if role is Role.EXPERTS else module_of(name), is_stack=role is Role.EXPERTS)
        if (rule := next((rule for rule in ordered if rule.claims(role, names)), None)) is not None:
            formats[name] = rule.format
    return formats


# ---- one function per method: the block -> rules


def _awq(block: Block) -> Iterator[Rule]:
    name = _integer(block["bits"], block["group_size"], has_zeros=block.get("zero_point", True))
    yield Rule(format=name, excluded=_patterns(block, "modules_to_not_convert"))


def _gptq(block: Block) -> Iterator[Rule]:
    """Symmetric files keep their zero points too, all alike; kernels drop them, so they are not counted.

    `dynamic` is GPTQModel's: `-:` before a pattern leaves modules out.
    """
    name = _integer(block["bits"], block["group_size"], has_zeros=not block.get("sym", True))
    dynamic = [key for key in block.get("dynamic") or {} if key.startswith("-:")]
    inside = block.get("modules_in_block_to_quantize") or []
    targets = tuple(name for names in inside for name in (names if isinstance(names, list) else [names]))
    roles = _LISTED if block.get("lm_head") else (Role.LINEAR, Role.EXPERTS)
    yield Rule(
        format=name,
        targets=targets or (ANY_LINEAR,),
        excluded=(*_patterns(block, "modules_to_not_convert"), *(f"re:{key[2:]}" for key in dynamic)),
        roles=roles,
    )


def _bitsandbytes(block: Block) -> Iterator[Rule]:
    skipped = _patterns(block, "llm_int8_skip_modules")
    if block.get("load_in_8bit") or block.get("_load_in_8bit"):
        yield Rule(format="int8-channel-a8-s32", excluded=skipped)
    elif block.get("load_in_4bit") or block.get("_load_in_4bit"):
        values = block.get("bnb_4bit_quant_type", "fp4")
        double = "-double" if block.get("bnb_4bit_use_double_quant") else ""
        yield Rule(format=f"{_one_of(values, 'nf4', 'fp4')}-g64{double}", excluded=skipped)


def _fp8(block: Block) -> Iterator[Rule]:
    size = block.get("weight_block_size")
    name = "fp8" if size is None else _block_name("fp8", size)
    excluded = (*_patterns(block, "modules_to_not_convert"), *_patterns(block, "ignored_layers"))
    yield Rule(format=name, excluded=excluded)


def _fbgemm_fp8(block: Block) -> Iterator[Rule]:
    yield Rule(format="fp8-channel", excluded=_patterns(block, "modules_to_not_convert"))


def _mxfp4(block: Block) -> Iterator[Rule]:
    """Expert stacks alone: attention stays in 16 bits whether or not the list of exclusions says so."""
    yield Rule(format="mxfp4", excluded=_patterns(block, "modules_to_not_convert"), roles=(Role.EXPERTS,))


def _nvfp4(block: Block) -> Iterator[Rule]:
    yield Rule(format="nvfp4", excluded=_patterns(block, "modules_to_not_convert"))


def _compressed_tensors(block: Block) -> Iterator[Rule]:
    ignored = _patterns(block, "ignore")
    for group in block["config_groups"].values():
        if (weights := group.get("weights")) is not None:
            yield Rule(
                format=_scheme_name(weights, group.get("input_activations")),
                targets=tuple(group.get("targets") or (ANY_LINEAR,)),
                excluded=ignored,
                roles=_LISTED,
            )


def _modelopt(block: Block) -> Iterator[Rule]:
    """NVIDIA's tool: one algorithm for all, or one per layer."""
    excluded = (*_patterns(block, "exclude_modules"), *_patterns(block, "ignore"))
    for path, layer in (block.get("quantized_layers") or {}).items():
        yield Rule(format=_algorithm(layer), targets=(path,), roles=_LISTED)
    if str(block.get("quant_algo") or "MIXED_PRECISION").upper() != "MIXED_PRECISION":
        yield Rule(format=_algorithm(block), excluded=excluded, roles=_LISTED)
    elif "config_groups" in block:
        yield from _compressed_tensors({**block, "ignore": excluded})


METHODS: dict[str, Callable[[Block], Iterator[Rule]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _gptq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "compressed-tensors": _compressed_tensors,
    _PRODUCER: _modelopt,
    "modelopt_fp4": _modelopt,
}


# ---- names of formats


def _integer(bits: int, group_size: int, *, has_zeros: bool) -> str:
    """A group size of -1 is one scale for each output."""
    grouping = "channel" if int(group_size) < 0 else f"g{int(group_size)}"
    return f"int{int(bits)}-{grouping}{_zeros(int(bits), has_zeros)}"


def _zeros(bits: int, has_zeros: bool) -> str:
    if bits == 8:
        return "-asym" if has_zeros else ""
    return "" if has_zeros else "-sym"


def _scheme_name(weights: Block, activations: Block | None) -> str:
    """A scheme of compressed-tensors: bits, type, strategy and symmetry of the weights, and what meets them."""
    bits, kind, strategy = int(weights["num_bits"]), weights.get("type", "int"), weights.get("strategy", "tensor")
    if kind == "float" and (bits == 4 or weights.get("group_size") == _MX_GROUP):
        values = f"mxfp{bits}" if weights.get("group_size") == _MX_GROUP else "nvfp4"
        return values if activations is not None else f"{values}-a16"
    values = "fp8" if kind == "float" else f"int{bits}"
    name = values + _grouping(values, _one_of(strategy, "tensor", "channel", "group", "block", "tensor_group"), weights)
    if kind == "float":
        return name if activations is not None else f"{name}-a16"
    return name + _zeros(bits, not weights.get("symmetric", True)) + _activations(activations)


def _grouping(values: str, strategy: str, weights: Block) -> str:
    match strategy:
        case "tensor":
            return "" if values == "fp8" else "-tensor"
        case "channel":
            return "-channel"
        case "block":
            return _block_name("", weights["block_structure"])
    return f"-g{int(weights['group_size'])}"


def _activations(activations: Block | None) -> str:
    if activations is None or int(activations["num_bits"]) > 8:
        return ""
    return "-afp8" if activations.get("type") == "float" else "-a8"


def _algorithm(block: Block) -> str:
    group = int(block.get("group_size") or 128)
    known = {
        "FP8": "fp8",
        "FP8_PER_CHANNEL_PER_TOKEN": "fp8-channel",
        "FP8_PB_WO": "fp8-block128-a16",
        "NVFP4": "nvfp4",
        "NVFP4_AWQ": "nvfp4",
        "MXFP4": "mxfp4",
        "MXFP8": "mxfp8",
        "W4A16_AWQ": f"int4-g{group}-sym",
        "W4A8_AWQ": f"int4-g{group}-sym-afp8",
        "INT8_SQ": "int8-channel-a8",
        "W8A8_SQ_PER_CHANNEL": "int8-channel-a8",
        "W8A16": "int8-channel",
    }
    algorithm = str(block["quant_algo"]).upper()
    if algorithm not in known:
        raise ValueError(f"quant_algo {algorithm!r} is none of {', '.join(known)}")
    return known[algorithm]


def _block_name(values: str, size: Sequence[int]) -> str:
    rows, columns = (int(side) for side in size)
    return f"{values}-block{rows}" + ("" if rows == columns else f"x{columns}")


def _one_of(value: object, *known: str) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _patterns(block: Block, key: str) -> tuple[str, ...]:
    return tuple(pattern for pattern in block.get(key) or () if isinstance(pattern, str))


def _cache(block: Block) -> str | None:
    """The type of keys and values, where the checkpoint brings scales for them."""
    scheme = block.get("kv_cache_scheme")
    algorithm = str(block.get("kv_cache_quant_algo") or "").upper()
    if isinstance(scheme, dict) and int(scheme.get("num_bits", 16)) == 8:
        return FP8 if scheme.get("type", "float") == "float" else "int8"
    return {"FP8": FP8, "INT8": "int8"}.get(algorithm)
