"""Every kind of file that is read back, damaged in every way: a record or a clear error, never a traceback.

The call-graph file has more of these in `tests/core/callgraph/test_hostile_files.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import read_callgraph, to_json_dict
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.hardware import device_template, load_devices
from llm_perf_opt.core.hardware.calibration import read_calibration
from llm_perf_opt.core.reading import MODEL_FILE, read_foreign_json
from llm_perf_opt.core.recordings import read_recording
from llm_perf_opt.measurements.profile.metrics_file import read_metrics
from llm_perf_opt.measurements.profile.request import ProfileRequest, read_request
from llm_perf_opt.measurements.profile.run_folder import open_run_folder
from llm_perf_opt.sweeps.function.files.function_file import function_document, read_function
from tests.core.callgraph.made_graphs import toy_graph
from tests.core.recordings.test_chrome_trace import HOST, kernel
from tests.examples import examples
from tests.measurements.profile.made_runs import made_page, made_pass
from tests.measurements.profile.test_document import document as metrics
from tests.sweeps.function.made_phases import BATCH, CONTEXT, MadePhase, Variant
from tests.timing.made_calibrations import calibration, matmul_seconds, table

FUZZ = settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True, slots=True)
class Read:
    """A good file and the function that reads it."""

    good: bytes
    read: Callable[[Path], object]

    def survives(self, raw: bytes, folder: Path) -> object:
        """What is read, or None where it is refused with the file's name, the reason and what to do."""
        file = folder / "file"
        file.write_bytes(raw)
        try:
            return self.read(file)
        except PerfOptError as error:
            assert error.what and error.why and error.fix
            assert len(str(error)) < 3000
            return None


def _page(file: Path) -> object:
    """As a resumed run reads it."""
    run = file.parent / "run"
    with open_run_folder(run, ProfileRequest(), "", force=True) as folder:
        (run / "pages").mkdir(exist_ok=True)
        (run / "pages" / "00000.json").write_bytes(file.read_bytes())
        return folder.finished_page(0, "page.png")


def _replay(file: Path) -> object:
    from llm_perf_opt.weightless.routing import read_replay

    return read_replay(file, "prefill")


def _made_calibration() -> object:
    ticks = {"rows": (1, 1000), "columns": (1000,), "depth": (1000,)}
    return calibration(table("matmul", "bfloat16", ticks, matmul_seconds), fresh_byte_s=3e-10)


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _made_function() -> bytes:
    phase = MadePhase(variants=lambda point: Variant(), domain={BATCH: (2, 4), CONTEXT: (1, 40)})
    header = {"schema_version": 1, "function_of": "toy", "tool_version": "1", "media_tokens": 0}
    return _json(function_document(header | {"workload": {}, "deployment": {}}, [phase.function()], None))


RECORDED_KERNEL = kernel("gemm", 200, 5.5, External_id=2, correlation=11)
JSON_FILES = {
    "call graph": Read(_json(to_json_dict(toy_graph(), with_events=True)), read_callgraph),
    "function": Read(_made_function(), read_function),
    "calibration": Read(_json(asdict(_made_calibration())), read_calibration),  # type: ignore[call-overload]
    "metrics": Read(_json(metrics("all known")), read_metrics),
    "page": Read(_json(made_page(made_pass(20, 10, (3, 5)), cold=made_pass(40, 20, (7, 8))).to_json()), _page),
    "request": Read(_json(asdict(ProfileRequest())), read_request),
    "expert counts": Read(_json({"prefill": [[1, 2, 3], [3, 2, 1]], "decode": [[1, 0, 0]]}), _replay),
    "recording": Read(_json({"traceEvents": [*HOST, RECORDED_KERNEL], "deviceProperties": []}), read_recording),
    "table of kernels": Read(_json([{"Start (ns)": 5, "Duration (ns)": "1,000", "Name": "gemm"}]), read_recording),
    "model file": Read(_json({"model_type": "x", "layers": [1, 2]}), lambda file: read_foreign_json(file, MODEL_FILE)),
}
FILES = JSON_FILES | {"devices": Read(device_template().encode(), load_devices)}


@pytest.mark.parametrize("name", FILES)
def test_the_good_file_is_read(name: str, tmp_path: Path) -> None:
    assert FILES[name].survives(FILES[name].good, tmp_path) is not None


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes(name: str, data: st.DataObject, tmp_path: Path) -> None:
    good = FILES[name].good
    at = data.draw(st.integers(0, len(good)))
    length = data.draw(st.integers(0, 5) | st.just(len(good)))
    some = st.sampled_from([b"0", b"-", b",", b'"', b"[", b"}", b"1e9", b"1e999", b"true", b"null", b"NaN", b"\\ud800"])
    put = data.draw(st.binary(max_size=4) | some)
    FILES[name].survives(good[:at] + put + good[at + length :], tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The address of every value in a document, containers included."""
    yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in steps:
        yield from places(item, (*path, step))


PLACES = {name: list(places(json.loads(file.good)))[1:] for name, file in JSON_FILES.items()}
JUNK: list[Any] = [
    *(None, True, -1, 0, 7, 2**63, -(2**63), 10**400, 0.0, 1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "9" * 500, [], [0], [[]], [None], {}, {"": 1}, {"a": {"a": []}}),
]


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("name", JSON_FILES)
def test_a_value_that_does_not_belong_there(name: str, data: st.DataObject, tmp_path: Path) -> None:
    document = json.loads(JSON_FILES[name].good)
    *way, last = data.draw(st.sampled_from(PLACES[name]))
    holder = document
    for step in way:
        holder = holder[step]
    if data.draw(st.booleans()):
        holder[last] = data.draw(st.sampled_from(JUNK))
    else:
        del holder[last]
    JSON_FILES[name].survives(_json(document), tmp_path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"null",
        b"[]",
        b"{}",
        b"9" * 9999,
    ],
    ids=["empty", "zero", "utf-16", "bom", "deep list", "deep object", "null", "list", "object", "long number"],
)
def test_what_is_no_such_file_at_all(name: str, raw: bytes, tmp_path: Path) -> None:
    found = FILES[name].survives(raw, tmp_path)
    assert found is None or name == "model file"


@pytest.mark.parametrize("name", sorted(FILES.keys() - {"page"}))
def test_a_place_without_a_file(name: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(PerfOptError):
            FILES[name].read(path)
