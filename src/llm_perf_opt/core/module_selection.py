"""Which modules were asked for: families, class names and path patterns, as `--only` and `--stage` take them.

A term of `--only` is one of these, the first that fits:

- a family of `module_families`, or `heavy`: `linear`, `attention`
- with a dot, a star or a bracket, a pattern of paths: `model.layers.*.mlp`, `blocks.[0-11].attn`, `sam_model.**`
- any other word, a class name or the last name of a path: `NoTPAttention`, `lm_head`

A pattern is compared with the end of a path, part by part: `*` stands for anything within a part, `**` for one part or
more, `[0-3,7]` for these numbers and `[first,second]` for these names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from llm_perf_opt.core.callgraph.queries import deepest_claim
from llm_perf_opt.core.callgraph.records import Json
from llm_perf_opt.core.errors import UsageError

if TYPE_CHECKING:
    from llm_perf_opt.core.callgraph.graph import CallGraph

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_LONGEST = 10_000  # characters of a pattern
Module = tuple[str, str, Mapping[str, object]]  # path, class name, constructor parameters
ONLY, ONLY_STAGES = "only", "only_stages"  # in the workload of a trace that records a part of the modules


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A pattern that is compared with the end of a path."""

    text: str
    _parts: tuple[str | None, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.text) > _LONGEST:
            raise UsageError(
                "The pattern is too long.", why=f"it has {len(self.text):,} characters", fix="name fewer modules"
            )
        parts = (None if part == "**" else part for part in split_outside_brackets(self.text, "."))
        object.__setattr__(self, "_parts", tuple(parts))

    def matches(self, path: str) -> bool:
        """Whether the path ends like this."""
        return self.rest_of(path) is not None

    def rest_of(self, path: str) -> str | None:
        """What stands before the part that the pattern describes; None where the path does not end like this."""
        names = path.split(".") if path else []
        at = _rest(self._parts, names, len(self._parts), len(names))
        return None if at is None else ".".join(names[:at])


def _rest(parts: tuple[str | None, ...], names: list[str], part: int, name: int) -> int | None:
    """How many names are left over when `parts[:part]` has taken the end of `names[:name]`."""
    while part:
        wanted = parts[part - 1]
        if wanted is None:
            rests = (_rest(parts, names, part - 1, shorter) for shorter in range(name - 1, -1, -1))
            return next((rest for rest in rests if rest is not None), None)
        if not name or not _fits(wanted, names[name - 1]):
            return None
        part, name = part - 1, name - 1
    return name


def _fits(wanted: str, name: str) -> bool:
    if wanted == name:
        return True
    bracket = _BRACKET.search(wanted)
    if bracket is None:
        return "*" in wanted and _stars_fit(wanted.split("*"), name)
    before, after = wanted[: bracket.start()], wanted[bracket.end() :]
    inner = name[len(before) : len(name) - len(after)]
    is_framed = name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after)
    return is_framed and any(_is_named(choice.strip(), inner) for choice in bracket[1].split(","))


def _is_named(choice: str, name: str) -> bool:
    limits = _RANGE.fullmatch(choice)
    if limits is None:
        return choice == name
    return name.isdecimal() and len(name) < 10 and int(limits[1]) <= int(name) <= int(limits[2])


def _stars_fit(pieces: list[str], name: str) -> bool:
    """Whether `name` begins with the first piece, ends with the last, and has the others between, in order."""
    first, *between, last = pieces
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for piece in between:
        start = name.find(piece, at, end)
        if start < 0:
            return False
        at = start + len(piece)
    return True


def split_outside_brackets(text: str, separator: str) -> Iterator[str]:
    """The pieces of `text`; a separator between brackets belongs to its piece."""
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == separator and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


@dataclass(frozen=True, slots=True)
class ModuleSelection:
    """The modules that one of the terms names."""

    terms: tuple[str, ...]

    @classmethod
    def parse(cls, given: str | Iterable[str]) -> ModuleSelection:
        """From `linear,conv,model.layers.*.mlp`, or the terms one by one."""
        texts = [given] if isinstance(given, str) else list(given)
        terms = [term.strip() for text in texts for term in split_outside_brackets(text, ",")]
        if not all(terms):
            raise UsageError(
                f"A term of {','.join(texts)!r} is empty.",
                why="terms are separated by commas",
                fix=f"name families ({', '.join(FAMILY_NAMES)}, {HEAVY}), classes or paths",
            )
        return cls(tuple(dict.fromkeys(terms)))

    def takes(self, path: str, class_name: str, constructor_params: Mapping[str, object]) -> bool:
        """Whether some term names this module."""
        return any(_names(term, path, class_name, constructor_params) for term in self.terms)

    def terms_without(self, modules: Iterable[Module]) -> list[str]:
        """The terms that name none of the modules, each given as path, class name and constructor parameters.

        A family may be empty, so that one list of families serves every model; all terms together may not.
        """
        modules = list(modules)
        if not any(self.takes(*module) for module in modules):
            return list(self.terms)
        left = {term: None for term in self.terms if term.lower() not in (*FAMILY_NAMES, HEAVY)}
        for path, class_name, params in modules:
            for term in [term for term in left if _names(term, path, class_name, params)]:
                del left[term]
            if not left:
                break
        return list(left)

    def __str__(self) -> str:
        return ", ".join(self.terms)


def _names(term: str, path: str, class_name: str, constructor_params: Mapping[str, object]) -> bool:
    word = term.lower()
    if word == HEAVY:
        return family_of(class_name, constructor_params) in HEAVY_NAMES
    if word in FAMILY_NAMES:
        return family_of(class_name, constructor_params) == word
    if any(char in term for char in ".*["):
        return _pattern(term).matches(path)
    return word == class_name.lower() or (bool(path) and term == path.rpartition(".")[2])


@lru_cache(maxsize=256)
def _pattern(term: str) -> PathPattern:
    return PathPattern(term)


def unknown_terms(terms: Iterable[str], classes: Iterable[str]) -> UsageError:
    """No module is what a term says; the classes there are help to find the right word."""
    named = list(terms)
    known = sorted(set(classes))
    words = [word for word in (*FAMILY_NAMES, HEAVY, *known) if word.lower() != named[0].lower()]
    close = difflib.get_close_matches(named[0], words, n=3, cutoff=0.5)
    return UsageError(
        f"--only names no module with {', '.join(map(repr, named))}.",
        why=f"a term is a family ({', '.join(FAMILY_NAMES)}, {HEAVY}), a class name or a path pattern",
        fix=f"did you mean {' or '.join(close)}?" if close else f"classes here: {', '.join(known[:12])}",
    )


def recorded_paths(
    modules: Iterable[Module],
    stage_of_path: Mapping[str, str],
    phase: str,
    only: ModuleSelection | None,
    stages: Container[str],
) -> frozenset[str]:
    """What a filtered trace records: chosen modules, the root, and the modules that begin a stage.

    A module belongs to the stage that claims it or the nearest module above it, else to the phase; no `stages` are all.
    """
    return frozenset(
        path
        for path, class_name, params in modules
        if not path
        or path in stage_of_path
        or (
            (only is None or only.takes(path, class_name, params))
            and (not stages or (deepest_claim(path, stage_of_path) or phase) in stages)
        )
    )


def recorded_of(graph: CallGraph) -> frozenset[str] | None:
    """The modules that a filtered trace could record, whether or not they ran; None for a trace of all modules."""
    terms, named = graph.workload.get(ONLY), graph.workload.get(ONLY_STAGES)
    if not isinstance(terms, str) and not isinstance(named, str):
        return None
    modules = (
        (path, class_name, graph.constructor_params.get(path, {})) for path, class_name in graph.module_types.items()
    )
    claims = {path: stage for stage, paths in graph.stages for path in paths}
    only = ModuleSelection.parse(terms) if isinstance(terms, str) else None
    stages = [name.strip() for name in named.split(",")] if isinstance(named, str) else []
    return recorded_paths(modules, claims, graph.phase, only, stages)


def recorded_only(workload: Mapping[str, object]) -> str | None:
    """What a filtered trace records, in words; None for a trace that records every module."""
    parts = [f"only {workload[ONLY]}"] if workload.get(ONLY) else []
    parts += [f"only stage {workload[ONLY_STAGES]}"] if workload.get(ONLY_STAGES) else []
    return ", ".join(parts) or None


def stage_list(given: str | Iterable[str]) -> tuple[str, ...]:
    """Each name once."""
    texts = [given] if isinstance(given, str) else list(given)
    return tuple(dict.fromkeys(name.strip() for text in texts for name in text.split(",")))


def chosen_stages(given: str | Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Stage names from `sam,clip`, or one by one; a name that no stage has is refused."""
    names, stages = stage_list(given), tuple(dict.fromkeys(known))
    for name in names:
        if name not in stages:
            raise UsageError(
                f"There is no stage {name!r}.", why=f"the stages are: {', '.join(stages)}", fix="choose among them"
            )
    return names


# What kind of module a class is: one table of families, decided from the class name and the constructor parameters.
#
# The end of a class name says what the class is (`KimiLinearMoE`, `NoTPAttention`), so names are matched at their end
# and without regard to case. A name that no row knows is decided by its parameters. A module is in one family or in
# none.

HEAVY = "heavy"  # a word for all families that hold weights or run matmuls


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFamily:
    """A word for `--only`, and what it means."""

    name: str
    meaning: str
    endings: str  # of class names, as a regular expression
    params: frozenset[str] = frozenset()  # a module of another name that keeps all of these is in the family too
    is_heavy: bool = False  # holds weights or runs matmuls: what a GPU spends its time on


FAMILIES = (
    ModuleFamily(
        name="linear",
        meaning="one matmul with a weight: Linear, its parallel and quantised kinds, transformers' Conv1D",
        endings=r"Linear(Layer|Projection|4bit|8bitLt|FP8)?|(?-i:^Conv1D)",
        params=frozenset({"in_features", "out_features"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="conv",
        meaning="convolutions and their transposes",
        endings=r"(?<!^)Conv(Transpose)?[123]d(Same|SamePadding)?|(?-i:^(Lazy)?Conv(Transpose)?[123]d)",
        params=frozenset({"in_channels", "out_channels", "kernel_size"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="attention",
        meaning="attention of any kind, with its projections",
        endings=r"Att(entio)?n\d?(\dd)?(Core|Wrapper)?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="norm",
        meaning="normalisation: layer, RMS, batch and group norms",
        endings=r"(?<!Stable)(?<!StableLayer)Norm([123]d|fp32|Gated|Zero|Single)?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="embedding",
        meaning="look-ups of tokens, and images cut into patches",
        endings=r"(?<!Rotary)(?<!Position)(?<!Positional)Embed(der|ding|dings|s)?(\dd|Table)?",
        params=frozenset({"num_embeddings", "embedding_dim"}),
        is_heavy=True,
    ),
    ModuleFamily(
        name="position",
        meaning="position encodings: rotary, sinusoidal, learned, relative",
        endings=r"(Rotary|Position|Positional)(Emb|Embed|Embedding|Embeddings|Encoder|Encoding|Bias)(\dd)?|(?-i:RoPE)",
    ),
    ModuleFamily(
        name="activation",
        meaning="elementwise functions: GELU, SiLU, ReLU, sigmoid, tanh; softmax",
        endings=r"(GELU|SiLU|Swish|ReLU6?|[PSC]?ELU|Sigmoid|Tanh|Softmax|Softplus|Mish|Activation|^GLU)(Tanh)?",
    ),
    ModuleFamily(
        name="experts",
        meaning="mixture-of-experts block, and experts stacked in one module",
        endings=r"(MoE(Block|Layer)?|Experts|SparseMLP|MixtureOfExperts)",
        is_heavy=True,
    ),
    ModuleFamily(
        name="mlp",
        meaning="feed-forward part of a layer; one expert by itself",
        endings=r"(MLP|FeedForward|FFN|ActDense|LayerFF|Expert|ExpertGLU)(Block|Layer|Network)?\d?",
        is_heavy=True,
    ),
    ModuleFamily(
        name="router",
        meaning="what sends tokens to experts",
        endings=r"(Router|MoEGate|TopKGate|TopKGating|ExpertGate)",
    ),
    ModuleFamily(
        name="recurrent",
        meaning="recurrent and state-space layers: LSTM, GRU, Mamba, delta nets",
        endings=r"(LSTM|GRU|RNN)(Cell)?|Mamba\d?(Mixer)?|SSM|DeltaNet|RecurrentBlock|Rglru",
        is_heavy=True,
    ),
    ModuleFamily(
        name="projector",
        meaning="what joins a vision or audio tower to a language model",
        endings=r"(Projector|Connector|Aligner|Merger)",
        is_heavy=True,
    ),
    ModuleFamily(name="pool", meaning="pooling", endings=r"Pool(er|ing)?([123]d)?"),
    ModuleFamily(name="dropout", meaning="dropout, idle in inference", endings=r"Drop(out|Path)\d?d?"),
    ModuleFamily(name="block", meaning="a whole layer of a stack", endings=r"(Layer|Block)"),
)
FAMILY_NAMES = tuple(family.name for family in FAMILIES)
HEAVY_NAMES = frozenset(family.name for family in FAMILIES if family.is_heavy)
_PATTERNS = [(family, re.compile(rf"(?:{family.endings})$", re.IGNORECASE)) for family in FAMILIES]


def family_of(class_name: str, constructor_params: Mapping[str, object] | None = None) -> str | None:
    """The family of a module; None where no row of the table fits."""
    named = _family_of_name(class_name)
    if named is not None or not constructor_params:
        return named
    given = constructor_params.keys()
    return next((family.name for family in FAMILIES if family.params and family.params <= given), None)


@lru_cache(maxsize=4096)
def _family_of_name(class_name: str) -> str | None:
    return next((family.name for family, pattern in _PATTERNS if pattern.search(class_name)), None)


def is_heavy(class_name: str, constructor_params: Mapping[str, object] | None = None) -> bool:
    """Whether the module holds weights or runs matmuls, by its family."""
    return family_of(class_name, constructor_params) in HEAVY_NAMES


# Names under which released models keep how many experts a layer has and how many a token takes; the first one decides.
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "n_experts")
_CHOSEN = ("num_experts_per_tok", "top_k", "moe_top_k", "moe_topk", "moe_k", "num_selected_experts")


def layer_experts(tables: Iterable[Mapping[str, Json]]) -> tuple[int, int] | None:
    """Experts of a layer and experts per token, from the constructor parameters of its block and the block's parts."""
    tables = list(tables)
    counts = (
        next((table[name] for table in tables for name in names if type(table.get(name)) is int and table[name] > 0), 0)
        for names in (_EXPERTS, _CHOSEN)
    )
    experts, chosen = counts
    return (experts, chosen) if experts and chosen else None
