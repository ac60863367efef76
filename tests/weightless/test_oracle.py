"""Values that no tensor holds: answered in range, the same every time, and written down."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llm_perf_opt.core.callgraph import CallGraphBuilder
from llm_perf_opt.weightless import Engine


def answers_of(engine: Engine, forward: object) -> dict[tuple[str, str], int]:
    """What the oracle wrote down while `forward` ran."""
    builder = CallGraphBuilder()
    with engine.recording(builder):
        engine.run(forward)  # type: ignore[arg-type]
    graph = builder.finish(
        model="m", phase="p", tracer="weightless", workload={}, stages=(), runtime={}, library_versions={}
    )
    return {(answer.op, answer.policy): answer.count for answer in graph.oracle_answers}


def test_a_scalar_is_one_and_the_question_is_recorded_with_its_line() -> None:
    engine = Engine()
    builder = CallGraphBuilder()
    with engine.recording(builder):
        assert engine.run(lambda: engine.ghost(3).sum().item()) == 1.0
    graph = builder.finish(model="m", phase="p", tracer="t", workload={}, stages=(), runtime={}, library_versions={})
    (answer,) = graph.oracle_answers
    assert (answer.op, answer.policy, answer.count) == ("item", "one", 1)
    assert answer.site.startswith("test_oracle.py:")


def test_an_override_answers_one_line_of_code() -> None:
    line = test_an_override_answers_one_line_of_code.__code__.co_firstlineno + 3
    engine = Engine(overrides={f"test_oracle.py:{line}": 7.0})
    overridden = engine.run(lambda: engine.ghost(3).sum().item())
    elsewhere = engine.run(lambda: engine.ghost(3).sum().item())
    assert (overridden, elsewhere) == (7.0, 1.0)


def test_python_asks_in_many_ways() -> None:
    engine = Engine()

    def ask() -> tuple[object, ...]:
        x = engine.ghost(2, 3)
        return (
            bool((x > 0).any()),
            int(x[0, 0]),
            float(x.mean()),
            f"{x[0, 0]:.2f}",
            x.tolist(),
            x.cpu().detach().float().numpy().shape,
            bool(x.isnan().any()),
            bool(x.isfinite().all()),
        )

    assert engine.run(ask) == (True, 1, 1.0, "1.00", [[0.5] * 3] * 2, (2, 3), False, True)


def test_indices_are_in_range_and_clear_of_special_tokens() -> None:
    engine = Engine()
    small = engine.run(lambda: engine.ghost(9, 5).argmax(-1))
    assert 0 <= int(small.min()) <= int(small.max()) < 5
    token = int(engine.run(lambda: engine.ghost(1, 129_280).argmax(-1)))
    assert 1000 < token < 129_280 - 1000
    drawn = engine.run(lambda: torch.multinomial(engine.ghost(2, 7).softmax(-1), 3))
    assert drawn.shape == (2, 3)
    assert int(drawn.max()) < 7


def test_a_mask_of_activations_has_a_fixed_count() -> None:
    engine = Engine()
    x = engine.ghost(2, 8)
    assert engine.run(lambda: x[x > 0].shape) == (8,)
    assert engine.run(lambda: (x > 0).nonzero().shape) == (8, 2)


def test_loops_until_convergence_end() -> None:
    engine = Engine()

    def iterate() -> int:
        x, steps = engine.ghost(5), 0
        while (x.abs() > 1e-3).any():
            x, steps = x * 0.5, steps + 1
        error = 1.0
        while error > 1e-3:
            error, steps = x.norm().item(), steps + 1
        return steps

    assert engine.run(iterate) < 10_000


def test_a_guess_that_makes_the_model_raise_is_revised() -> None:
    engine = Engine()

    def picky() -> str:
        if not bool(engine.ghost(1) < 3):
            raise ValueError("values out of range")
        return "accepted"

    assert engine.run(picky) == "accepted"


def test_an_error_that_no_guess_causes_is_raised_as_it_is() -> None:
    engine = Engine()

    def broken() -> None:
        bool(engine.ghost(1) < 3)
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing"):
        engine.run(broken)


def test_a_large_constant_keeps_its_value_without_its_memory() -> None:
    engine = Engine()

    def sums() -> tuple[float, float, bool, float]:
        zeros = torch.zeros(1, 3, 2048, 2048)
        ones = torch.ones(3, 2048, 2048, dtype=torch.bfloat16)
        written = torch.zeros(1, 3, 2048, 2048)
        written[0, 0] = engine.ghost(2048, 2048)
        return zeros.sum().item(), ones.float().max().item(), bool(zeros.to(torch.bfloat16).any()), written.sum().item()

    assert engine.run(sums) == (0.0, 1.0, False, 1.0)  # the written one is no longer known: the oracle answers


def test_router_choices_are_recorded_with_their_policy() -> None:
    engine = Engine(routing="random:3")

    class Router(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.softmax(-1).topk(2, dim=-1).indices

    assert answers_of(engine, lambda: Router()(engine.ghost(8, 4))) == {("topk", "random:3"): 1}
