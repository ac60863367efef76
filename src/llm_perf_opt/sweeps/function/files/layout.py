"""The file of a function, object by object, as it is written. `function.schema.json` is generated from these records.

What occurs often has a table of its own, and is referred to by its row: forms and their atoms, columns of integers,
module paths, tensors, ops. A size is a number; one below zero is a form: -1 is the first row of `forms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from llm_perf_opt.core.callgraph.json_layout import Column, Count, FreeForm, StageRow, Texts
from llm_perf_opt.sweeps.function.files.records import RowObject, Size, row_type
from llm_perf_opt.sweeps.function.form import StepKind
from llm_perf_opt.sweeps.function.phase_function import PhaseFunction
from llm_perf_opt.sweeps.function.program.loops import Loop
from llm_perf_opt.sweeps.function.program.program import Program

# In free values: {"$form": 3} is row 3 of `forms`, {"$times": 3, "item": x} a list of so many x, {"$text": [...]} a
# text whose parts are texts and numbers.
FORM_KEY, TIMES_KEY, TEXT_KEY = "$form", "$times", "$text"
MOST_FACTORS = 8
MOST_STEP_CONSTANTS = 3

Point = Annotated[dict[str, Count], Meta(description="Variable -> its value.")]
ColumnRow = Annotated[Count, Meta(description="Row of columns.")]
WithForms = Annotated[
    FreeForm,
    Meta(
        description='Any JSON values, at most 32 levels deep. {"$form": 3} is row 3 of forms, '
        '{"$times": 3, "item": x} a list of as many x as row 3 says, {"$text": [...]} a text made of texts and numbers.'
    ),
]
Term = Annotated[
    tuple[int, ...],
    Meta(min_length=1, max_length=MOST_FACTORS + 1, description="A coefficient, then the rows of atoms to multiply."),
]
FormTerms = Annotated[tuple[Term, ...], Meta(description="A sum of terms; none: 0.")]


if TYPE_CHECKING:
    StepName = str
else:
    StepName = Literal[tuple(kind.value for kind in StepKind)]


class StepRow(RowObject, frozen=True, kw_only=True):
    """A function of a form that is no polynomial: `ceil` of a / n; `bits` that a has; `max` of a and n.

    Of rows that draw k of n experts: `touched`, how many experts get rows; `share`, the rows of expert e; `offset`, the
    rows of all experts before e. The constants are (n), none, (n), (k, n), (k, n, e), (k, n, e).
    """

    kind: StepName
    of: Annotated[Count, Meta(description="Row of forms, before every form that the step occurs in.")]
    constants: Annotated[
        tuple[Annotated[int, Meta(ge=-2, le=2**63 - 1)], ...],
        Meta(
            max_length=MOST_STEP_CONSTANTS,
            description="In a loop over experts -1 is the expert whose block it is, and -2 the one after it.",
        ),
    ]


class TensorRow(RowObject, frozen=True, kw_only=True):
    """A tensor whose dimensions may be forms."""

    shape: tuple[Size, ...]
    dtype: str
    device: str


class SizedKindRow(RowObject, frozen=True, kw_only=True):
    """One distinct op. `inputs` and `outputs` are rows of tensors, `parts` rows of kinds before this one."""

    name: str
    inputs: tuple[Count, ...]
    outputs: tuple[Count, ...]
    arguments: WithForms
    input_names: Texts
    output_aliases: tuple[Annotated[int, Meta(ge=-1, le=2**31)], ...]
    mutates: bool
    parts: tuple[Count, ...]


class ParametersRow(RowObject, frozen=True, kw_only=True):
    """Weights and buffers by name; tied ones share a storage."""

    name: Texts
    tensor: Annotated[Column, Meta(description="Rows of tensors.")]
    storage: Annotated[Column, Meta(description="Rows of storages, or -1.")]
    is_buffer: Annotated[Column, Meta(description="0 or 1.")]


class ModelRow(RowObject, frozen=True, kw_only=True):
    """What a program has from the model and not from the workload: the keys of a call-graph file of these names."""

    tool_version: str
    library_versions: dict[str, str]
    model: str
    deployment: FreeForm
    tracer: str
    module_children: dict[str, Texts]
    module_types: dict[str, str]
    constructor_params: dict[str, FreeForm]


class OpsRow(RowObject, frozen=True, kw_only=True):
    """Every op, in order, as in a call-graph file. `kind` counts in `kinds` of the program."""

    kind: ColumnRow
    call: ColumnRow
    input_storages: ColumnRow
    output_storages: ColumnRow


class CallsRow(RowObject, frozen=True, kw_only=True):
    """Every module call, as in a call-graph file. `path` and the metas count in `paths` and `metas` of the program."""

    path: ColumnRow
    parent: ColumnRow
    first_op: ColumnRow
    end_op: ColumnRow
    input_count: ColumnRow
    output_count: ColumnRow
    input_metas: ColumnRow
    input_storages: ColumnRow
    output_metas: ColumnRow
    output_storages: ColumnRow


class BlocksRow(RowObject, frozen=True, kw_only=True):
    """Every block of memory, as in a call-graph file, with sizes that may be forms."""

    bytes: Annotated[Count, Meta(description="Row of columns; a number below zero is a form: -1 is row 0 of forms.")]
    born_op: ColumnRow
    freed_op: ColumnRow
    origin: ColumnRow


if TYPE_CHECKING:
    LoopRow = Any
else:
    LoopRow = row_type(Loop)


class GuessRow(RowObject, frozen=True, kw_only=True):
    """A value the run needed and no tensor held."""

    op: str
    policy: str
    site: str
    count: Size


class ProgramRow(RowObject, frozen=True, kw_only=True):
    """What a phase runs anywhere in a cell: a call graph whose sizes may be forms, and the points it was found at."""

    phase: str
    model: Annotated[Count, Meta(description="Row of models.")]
    parameters: Annotated[Count, Meta(description="Row of parameters.")]
    stages: tuple[StageRow, ...]
    notes: Texts
    paths: Annotated[Count, Meta(description="Row of columns, which holds rows of paths.")]
    kinds: Annotated[Count, Meta(description="Row of columns, which holds rows of kinds.")]
    metas: Annotated[Count, Meta(description="Row of columns, which holds rows of tensors.")]
    ops: OpsRow
    calls: CallsRow
    storages: BlocksRow
    loops: tuple[LoopRow, ...]
    workload: WithForms
    runtime: WithForms
    oracle_answers: tuple[GuessRow, ...]
    samples: Annotated[tuple[Point, ...], Meta(min_length=1)]


if TYPE_CHECKING:
    PhaseRow = Any
else:
    PhaseRow = row_type(PhaseFunction, {Program: ProgramRow})


class FunctionFile(RowObject, frozen=True, kw_only=True):
    """A trace as a function of its workload. Invariants between keys are checked on loading."""

    schema_version: Literal[1]
    function_of: Annotated[str, Meta(description="The model, as it was given.")]
    tool_version: Annotated[str, Meta(description="Version of llm-perf-opt that wrote the file.")]
    workload: Annotated[FreeForm, Meta(description="The workload whose batch and context the function varies.")]
    deployment: Annotated[FreeForm, Meta(description="How weights and cache are stored, where that was asked for.")]
    media_tokens: Annotated[Count, Meta(description="Tokens of a context that images and sound make.")]
    atoms: Annotated[tuple[str | StepRow, ...], Meta(description="Table: variables and steps.")]
    forms: Annotated[tuple[FormTerms, ...], Meta(description="Table of the distinct forms.")]
    columns: Annotated[tuple[Column, ...], Meta(description="Table of the distinct columns.")]
    paths: Annotated[Texts, Meta(description="Table of module paths.")]
    tensors: Annotated[tuple[TensorRow, ...], Meta(description="Table of tensors.")]
    kinds: Annotated[tuple[SizedKindRow, ...], Meta(description="Table of distinct ops.")]
    models: Annotated[tuple[ModelRow, ...], Meta(description="Table of what programs have from the model.")]
    parameters: Annotated[tuple[ParametersRow, ...], Meta(description="Table of the distinct sets of parameters.")]
    phases: tuple[PhaseRow, ...]
    chunk: Annotated[
        PhaseRow | None, Meta(description="A step of several new tokens after a cache, where the function has it.")
    ]
