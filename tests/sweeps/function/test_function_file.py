"""A function file holds what it was made from, and a damaged or invented one is refused by the place of its fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.sweeps.function.files.function_file import SavedFunction, read_function, write_function
from llm_perf_opt.sweeps.function.files.layout import from_row, row_type, to_row
from llm_perf_opt.sweeps.function.fitting import Routed
from llm_perf_opt.sweeps.function.form import Form, Step, StepKind
from llm_perf_opt.sweeps.function.program.loops import Loop
from tests.sweeps.function.made_phases import BATCH, CONTEXT, MadePhase, Variant

SCHEMA = json.loads(files("llm_perf_opt.sweeps.function.files").joinpath("function.schema.json").read_text("utf-8"))
DOMAIN = {BATCH: (1, 4), CONTEXT: (1, 90)}


def made_function() -> SavedFunction:
    """Two programs: one more op from 40 positions on."""
    phase = MadePhase(variants=lambda point: Variant(further_ops=int(point[CONTEXT] >= 40)), domain=DOMAIN)
    return SavedFunction(
        name="toy",
        tool_version="1.2.3",
        workload={"batch": 1, "prompt_tokens": 5},
        deployment={"cache": "fp8"},
        media_tokens=3,
        phases=(phase.function(),),
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("function") / "toy.function.json"
    write_function(made_function(), path)
    return path


def test_the_header_and_the_cells_are_read_back(file: Path) -> None:
    read = read_function(file)
    assert (read.name, read.tool_version, read.media_tokens) == ("toy", "1.2.3", 3)
    assert (read.workload, read.deployment) == ({"batch": 1, "prompt_tokens": 5}, {"cache": "fp8"})
    (phase,) = read.phases
    assert sorted(one.region[CONTEXT] for one in phase.cells if one.region[BATCH] == (2, 4)) == [(1, 39), (40, 90)]
    flops = {str(one.figures.total.flops) for one in phase.cells if one.figures is not None}
    # A projection from 8 to 16 and scores of 16 each: 2 * 8 * 16 and 2 * 16 FLOPs.
    assert flops == {"256 context + 32 context context", "256 batch context + 32 batch context context"}


def test_the_file_keeps_its_published_schema(file: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(file.read_text("utf-8")))


def test_forms_are_written_once_however_often_they_occur(file: Path) -> None:
    document = json.loads(file.read_text("utf-8"))
    assert sorted(document["atoms"]) == ["batch", "context"]
    assert len({json.dumps(form) for form in document["forms"]}) == len(document["forms"]) < 40
    assert len(document["models"]) == 1


def test_a_digit_that_changed_is_found(file: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.function.json"
    changed.write_bytes(file.read_bytes().replace(b'"traces":', b'"traces":1', 1))
    with pytest.raises(PerfOptError, match="was changed after it was written"):
        read_function(changed)


def _cell(document: Any, number: int = 0) -> Any:
    return document["phases"][0]["cells"][number]


def _program(document: Any) -> Any:
    return _cell(document)["cell"]["program"]


def _grow(document: Any) -> None:
    _cell(document)["cell"]["region"][CONTEXT][1] += 1


def _self_referring_step(document: Any) -> None:
    document["atoms"].append({"kind": "bits", "of": 0, "constants": []})
    document["forms"][0] = [[1, len(document["atoms"]) - 1]]


def _unknown_variable(document: Any) -> None:
    document["atoms"][0] = "tokens"


def _chunk_of_zero(document: Any) -> None:
    document["atoms"].append({"kind": "ceil", "of": 0, "constants": [0]})
    document["forms"].append([[1, len(document["atoms"]) - 1]])


def _tower_of_powers(document: Any) -> None:
    """Each step is of a power of the one before: the numbers would fill the memory."""
    for _ in range(5):
        document["atoms"].append({"kind": "bits", "of": len(document["forms"]) - 1, "constants": []})
        document["forms"].append([[2**100, *[len(document["atoms"]) - 1] * 8]])


def _negative_sizes(document: Any) -> None:
    document["forms"] = [[[-abs(term[0]), *term[1:]] for term in form] for form in document["forms"]]


def _a_form_that_is_no_row(document: Any) -> None:
    document["kinds"][0]["arguments"]["dim"] = {"$form": "first"}


def _sample_of_another_domain(document: Any) -> None:
    _program(document)["samples"][0] = {"batch": 1}


def _endless_loop(document: Any) -> None:
    loop = {"count": 0, "blocks": 10**9, "first_op": 0, "length": 0, "first_call": 0, "calls": 0}
    _program(document)["loops"] = [{**loop, "routed": None, "given": []}]


FAULTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a cell that grew": (_grow, "tile the domain"),
    "a cell that is gone": (lambda d: d["phases"][0]["cells"].pop(), "tile the domain"),
    "a step of itself": (_self_referring_step, "a form before"),
    "another variable": (_unknown_variable, "the variables of its domain"),
    "a chunk of nothing": (_chunk_of_zero, "a chunk of at least 1"),
    "numbers without end": (_tower_of_powers, "steps on fewer than"),
    "sizes below zero": (_negative_sizes, r"sizes of 0 or more|below 0"),
    "no row": (_a_form_that_is_no_row, "a form, a list of equal items or a text"),
    "another point": (_sample_of_another_domain, "points of batch, context|the variables of its domain"),
    "a loop without ops": (_endless_loop, "loops"),
    "a column that is not there": (lambda d: _program(d)["ops"].update(kind=10**6), "rows of a table"),
    "columns of two lengths": (
        lambda d: _program(d)["ops"].update(call=_program(d)["ops"]["input_storages"]),
        "contradicts itself",
    ),
    "no sample": (lambda d: _program(d).update(samples=[]), "samples"),
    "figures without a reason": (lambda d: _cell(d).update(figures=None), "the reason why there are none"),
    "an unknown key": (lambda d: _cell(d).update(figure={}), "a known key"),
    "a coefficient of zero": (lambda d: d["forms"][0].append([0]), "a coefficient"),
    "a size of 200 bits": (lambda d: d["tensors"][0].update(shape=[2**200]), "63 bits|too large"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_invented_file_is_refused_by_its_place(file: Path, tmp_path: Path, name: str) -> None:
    """Without the seal, as whoever changes it on purpose leaves it."""
    change, expected = FAULTS[name]
    document = json.loads(file.read_text("utf-8"))
    del document["content_sha256"]
    invented = tmp_path / "invented.function.json"
    invented.write_text(json.dumps(document))
    read_function(invented)
    change(document)
    invented.write_text(json.dumps(document))
    with pytest.raises(PerfOptError) as refusal:
        read_function(invented)
    assert "invented.function.json" in refusal.value.what
    assert refusal.value.why and refusal.value.fix
    assert any(re.search(expected, text) for text in (refusal.value.what, refusal.value.why))


def test_a_record_with_forms_is_written_field_by_field() -> None:
    """A loop over experts, whose rows are a form: there and back, with the form as its row."""
    tokens = Form.atom(Step(StepKind.CEIL, Form.atom(BATCH), (4,)))
    routed = Routed(tokens=tokens, chosen=2, experts=8)
    loop = Loop(
        count=tokens, blocks=8, first_op=3, length=5, first_call=1, calls=2, routed=routed, given=((1, 2), (3,))
    )
    row = to_row(loop, Loop, {Form: lambda _: 17})
    assert row["routed"] == {"tokens": 17, "chosen": 2, "experts": 8}
    assert (row["count"], row["given"]) == (17, [[1, 2], [3]])
    decoded = msgspec.convert(row, type=row_type(Loop))
    assert from_row(decoded, Loop, {Form: lambda number, _: {17: tokens}[number]}, "loop") == loop
