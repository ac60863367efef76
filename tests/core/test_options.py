"""An option is declared once; its limits, choices and reading hold wherever the value comes from."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.options import option, read_grid
from llm_perf_opt.core.plugins import FOLDERS, MODELS, make_workload, workload_options, workload_type
from llm_perf_opt.core.workload import Deployment, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages(Workload):
    """Two fields beside the common ones."""

    taken_by: ClassVar[str] = "A scanner"

    grid: tuple[int, int] | None = option(None, at_least=1, read=read_grid, header_none=([1, 1],), help="Tiles.")
    scale: float = option(1.0, help="Of the page.")


def test_a_declaration_says_everything_once() -> None:
    declared = Workload.options()
    assert list(declared) == ["prompt_tokens", "decode_steps", "new_tokens", "batch", "dtype", "autocast", "attention"]
    batch = declared["batch"]
    assert (batch.kind, batch.default, batch.at_least) == (int, 1, 1)
    assert declared["dtype"].choices == ("bfloat16", "float16", "float32")
    assert declared["prompt_tokens"].kind is int and declared["prompt_tokens"].default is None
    assert all(one.help.endswith(".") for one in declared.values())


def test_a_model_adds_its_own_fields_after_the_common_ones() -> None:
    assert list(Pages.options()) == [*Workload.options(), "grid", "scale"]
    assert (Pages.options()["grid"].kind, Pages.options()["grid"].text_kind) == (tuple, str)


@pytest.mark.parametrize("given", ["2x3", (2, 3), [2, 3]], ids=["command line", "Python", "JSON"])
def test_a_value_is_read_alike_from_everywhere(given: object) -> None:
    assert Pages.make(grid=given, scale=2, batch=4) == Pages(grid=(2, 3), scale=2, batch=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch": 0}, "batch cannot be 0"),
        ({"batch": "2"}, "batch cannot be '2'"),
        ({"batch": True}, "batch cannot be True"),
        ({"batch": None}, "batch cannot be None"),
        ({"dtype": "int3"}, "dtype cannot be 'int3'"),
        ({"grid": "2by3"}, "'2by3' is not a grid"),
        ({"grid": (0, 3)}, "grid cannot be 0"),
        ({"page": 3}, "A scanner takes no page"),
    ],
)
def test_what_is_not_declared_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Pages.make(**given)


def test_limits_hold_for_a_record_that_is_written_in_python() -> None:
    with pytest.raises(UsageError, match="decode_steps cannot be -1"):
        Workload(decode_steps=-1)


def test_a_workload_survives_the_header_of_a_trace() -> None:
    asked = Pages(grid=(2, 3), batch=2)
    header = asked.header({"prompt_tokens": 20, "context_tokens": 933, "batch": 2, "attention": "model default"})
    assert header["grid"] == [2, 3]  # nobody filled it in, and it was set
    assert "scale" not in header
    assert Pages.from_header({**header, "device": "cuda"}) == Pages(grid=(2, 3), batch=2, prompt_tokens=20)
    assert Pages.from_header({"grid": [1, 1]}) == Pages()


def test_a_plain_workload_becomes_that_of_a_model_and_back_only_if_nothing_is_lost() -> None:
    assert Pages.of(Workload(batch=3)) == Pages(batch=3)
    asked = Pages(scale=2.0)
    assert Pages.of(asked) is asked
    with pytest.raises(UsageError, match="takes no scale"):
        type(make_workload("got-ocr2")).of(asked)


def test_every_model_declares_its_options_without_torch() -> None:
    program = (
        "import sys; from llm_perf_opt.core.plugins import *; print(*workload_options()); "
        "make_workload('deepseek-ocr', image='9x9', mode='base'); "
        "print({'torch', 'transformers', 'numpy', 'PIL'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    names, heavy = said.splitlines()
    assert names.split() == list(workload_options())
    assert heavy == "set()"


def test_a_name_means_one_option_in_all_models() -> None:
    """The command line has one option for it, with one type and one default."""
    records = [workload_type(name) for name in MODELS.names()] + [workload_type("a/folder") for _ in FOLDERS.names()]
    for name, (declared, takers) in workload_options().items():
        same = [record.options()[name] for record in records if name in record.options()]
        assert {(one.kind, one.default, one.at_least, one.choices) for one in same} == {
            (declared.kind, declared.default, declared.at_least, declared.choices)
        }
        assert (takers == ()) is (len(same) == len(records))


def test_a_folder_of_a_model_that_is_known_here_takes_the_options_of_that_model(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "DeepseekOCR"}')
    assert workload_type(str(tmp_path)) is workload_type("deepseek-ocr")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "mode" not in workload_type(str(tmp_path)).options()


def test_a_deployment_is_declared_like_a_workload() -> None:
    assert list(Deployment.options()) == ["device", "weights", "cache"]
    assert Deployment.make(weights="fp8", cache=None) == Deployment(weights="fp8")
    with pytest.raises(UsageError, match="'q4_k_m' is not a weight format"):
        Deployment.make(weights="q4_k_m")
