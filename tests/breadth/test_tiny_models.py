"""One forward of many tiny architectures: a weightless run makes the calls that a real run makes."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", minversion="5.0", reason="the sample is written for the classes of transformers 5")

from benchmarks.breadth.observed import compare, run_real, run_weightless
from tests.breadth.tiny_models import TINY_MODELS
from tests.breadth.tiny_models.model_case import TinyModel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.breadth,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # the library's own calls
]

ROUTED = [model for model in TINY_MODELS if model.routed]
UNROUTED = [model for model in TINY_MODELS if not model.routed]


@pytest.fixture(scope="module", autouse=True)
def transformers_has_settled() -> None:
    """The first model that transformers builds gives `torch.nn.Module` a method for good; let that be done already."""
    TINY_MODELS[0].build()


def name_of(model: TinyModel) -> str:
    return model.model


@pytest.mark.parametrize("model", UNROUTED, ids=name_of)
def test_every_call_shape_and_dtype_equals_the_real_run(model: TinyModel) -> None:
    inputs = model.make_inputs()
    real = run_real(model.build, inputs)
    held = compare(real.seen, run_weightless(model.build, inputs))
    assert held.calls_real > 1
    assert held.exact, held.examples


@pytest.mark.parametrize("model", ROUTED, ids=name_of)
def test_replayed_counts_make_the_experts_equal_and_only_they_need_it(model: TinyModel) -> None:
    inputs = model.make_inputs()
    real = run_real(model.build, inputs)
    replayed = compare(real.seen, run_weightless(model.build, inputs, replay=real.routing))
    assert replayed.exact, replayed.examples
    balanced = compare(real.seen, run_weightless(model.build, inputs))
    assert balanced.differences, "the routing of this model is not visible in its calls: it is not a routed one"
    assert [path for path, _ in balanced.differences if ".experts" not in path] == []


def test_the_sample_is_wide() -> None:
    assert len({model.model for model in TINY_MODELS}) == len(TINY_MODELS) >= 60
    assert len({model.family for model in TINY_MODELS}) >= 12
    assert len(ROUTED) >= 5
