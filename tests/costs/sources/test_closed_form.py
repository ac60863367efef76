"""The closed-form source asks the adapter, needs nothing heavy for it, and says when there is nothing to ask."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from llm_perf_opt.core.plugins import SOURCES
from llm_perf_opt.core.source_figures import Method
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from tests.slowness import slowness

ASK = """
import json, sys
from llm_perf_opt.core.plugins import MODELS, SOURCES, make_workload
workload = make_workload("deepseek-ocr", image="1240x1754", decode_steps=100)
told = SOURCES.get("closed-form")().figures(MODELS.get("deepseek-ocr")(), workload)
heavy = [name for name in ("torch", "numpy", "PIL", "transformers") if name in sys.modules]
print(json.dumps({"heavy": heavy, "flops": sum(t.flops for t in told if t.phase == "prefill")}))
"""


def test_it_hands_on_what_the_adapter_knows_and_how_long_it_took() -> None:
    adapter, workload = DeepSeekOcrAdapter(), DeepSeekOcrWorkload(mode="base")
    told = SOURCES.get("closed-form")().figures(adapter, workload)
    assert [t.flops for t in told] == [t.flops for t in adapter.closed_forms(workload)]
    assert {t.source for t in told} == {"closed-form"}
    assert all(t.seconds is not None and 0 < t.seconds < 1 for t in told)


class Formless:
    title = "a model without formulas"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        raise AssertionError("nothing runs")


def test_an_adapter_without_formulas_gives_one_figures_that_says_so() -> None:
    (told,) = SOURCES.get("closed-form")().figures(Formless(), Workload())
    assert (told.stage, told.flops, told.method) == ("total", None, Method.CLOSED_FORM)
    assert told.failure is not None
    assert "a model without formulas" in told.failure


def test_nothing_heavy_is_imported_and_it_takes_half_a_second_at_most() -> None:
    """The bound is on processor time, interpreter included, because a busy machine is no regression."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"heavy": [], "flops": 4_582_251_702_272}
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(3)) < 0.5 * slowness()
