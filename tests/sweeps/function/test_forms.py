from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llm_perf_opt.sweeps.function.fitting import DenseFitter, Fitter
from llm_perf_opt.sweeps.function.form import Evaluation, Form, Step, StepKind, monomial

B, S = Form.atom("batch"), Form.atom("context")
SMALL = st.integers(-50, 50)
MONOMIALS = st.sampled_from([(), ("batch",), ("batch", "context"), ("context", "context")])
POINTS = st.tuples(st.integers(1, 1 << 12), st.integers(1, 1 << 17))


@given(SMALL, SMALL, SMALL, POINTS)
def test_forms_calculate_as_numbers_do(a: int, b: int, c: int, point: tuple[int, int]) -> None:
    batch, context = point
    at = {"batch": batch, "context": context}
    form = (B * a + S * b + c) * (S + B) - B * S
    assert form.at(at) == (a * batch + b * context + c) * (context + batch) - batch * context


def test_equal_forms_are_equal_however_they_were_made() -> None:
    assert (B + S) * (B - S) == B * B - S * S
    assert hash(B * S) == hash(S * B)
    assert (B - B).constant == 0
    assert str(B * S * 2 + 7) == "2 batch context + 7"


def test_steps_are_numbers_too() -> None:
    chunks = Form.atom(Step(StepKind.CEIL, S, (256,)))
    assert [chunks.at({"context": n}) for n in (1, 256, 257)] == [1, 1, 2]
    shares = [Step(StepKind.SHARE, B, (6, 64, expert)) for expert in range(64)]
    offsets = [Step(StepKind.OFFSET, B, (6, 64, expert)) for expert in range(65)]
    for tokens in (1, 3, 17, 200):
        rows = [share.at({"batch": tokens}) for share in shares]
        touched = Step(StepKind.TOUCHED, B, (6, 64)).at({"batch": tokens})
        assert sum(rows[:touched]) == 6 * tokens
        assert [offset.at({"batch": tokens}) for offset in offsets[: touched + 1]] == [
            sum(rows[:expert]) for expert in range(touched + 1)
        ]


@given(
    st.lists(POINTS, min_size=1, max_size=20),
    st.lists(
        st.tuples(st.sampled_from([(), ("batch",), ("batch", "context"), ("context", "context")]), SMALL), max_size=4
    ),
    st.integers(0, 60),
)
def test_many_points_at_once_are_the_same_to_the_last_integer(
    points: list[tuple[int, int]], terms: list[tuple[tuple[str, ...], int]], shift: int
) -> None:
    form = Form.sum_of((one, coefficient << shift) for one, coefficient in terms)
    columns = {
        "batch": np.array([batch for batch, _ in points]),
        "context": np.array([context for _, context in points]),
    }
    found = Evaluation(columns).of(form)
    assert [int(value) for value in found] == [form.at({"batch": b, "context": s}) for b, s in points]
    table = Evaluation(columns).table([form, Form(), form + 3])
    assert [[int(value) for value in row] for row in table] == [
        [one.at({"batch": b, "context": s}) for b, s in points] for one in (form, Form(), form + 3)
    ]


def test_steps_of_many_points() -> None:
    tokens = np.array([1, 2, 3, 50, 51, 52, 1000, 10**6])
    for step in (
        Step(StepKind.TOUCHED, S, (6, 64)),
        Step(StepKind.BITS, S * 3 - 1),
        Step(StepKind.CEIL, S + 1, (128,)),
        Step(StepKind.MAX, S, (64,)),
        Step(StepKind.SHARE, S, (6, 64, 5)),
    ):
        found = Evaluation({"context": tokens}).of(Form.atom(step))
        assert found.tolist() == [step.at({"context": int(value)}) for value in tokens]


SAMPLES = [{"batch": b, "context": s} for b, s in ((2, 37), (3, 37), (2, 53), (3, 71), (5, 53), (2, 101))]


@given(st.integers(0, 9), st.integers(0, 9), st.integers(-9, 9))
def test_a_dimension_is_found_from_its_samples(a: int, b: int, c: int) -> None:
    form = B * S * a + S * b + c
    found = Fitter(points=SAMPLES, variables=("batch", "context")).dimension(tuple(map(form.at, SAMPLES)))
    assert found == form


def test_what_no_rule_gives_is_none() -> None:
    fitter = Fitter(points=SAMPLES, variables=("batch", "context"))
    assert fitter.dimension((3, 1, 4, 1, 5, 9)) is None
    assert fitter.size(tuple(p["context"] ** 2 * p["batch"] for p in SAMPLES)) == B * S * S


def test_a_whole_basis_is_solved_and_checked() -> None:
    monomials = [(), ("batch",), monomial("batch", "context"), monomial("context", "context")]
    points = [{"batch": b, "context": s} for b in (1, 2, 7) for s in (3, 10, 100)]
    fitter = DenseFitter(monomials, points)
    form = B * S * 12345678901234567890 + S * S * 3 - 5
    assert fitter.fit(tuple(map(form.at, points))) == form
    values = [form.at(point) for point in points]
    values[-1] += 1
    assert fitter.fit(tuple(values)) is None
    assert fitter.checks == len(points) - len(monomials)


def test_steps_of_two_chunks_are_not_mixed() -> None:
    """batch (1 + ceil(context / 256)) is also batch (3 ceil(context / 256) - ceil(context / 128)) at these samples."""
    samples = [(2, 259), (5, 298), (2, 353), (3, 259), (2, 1300)]
    points = [{"batch": batch, "context": context} for batch, context in samples]
    fitter = Fitter(points=points, variables=("batch", "context"), chunks=(64, 128, 256))
    mixed = [3 * -(-context // 256) - -(-context // 128) for _, context in samples]
    assert mixed == [1 + -(-context // 256) for _, context in samples]
    form = fitter.size(tuple(2_621_440 * batch * (1 + -(-context // 256)) for batch, context in samples))
    assert form is not None
    chunks = {atom.constants for atom in form.atoms() if isinstance(atom, Step)}
    assert len(chunks) == 1


def test_a_size_in_chunks_is_found_with_the_chunk_that_a_configuration_names() -> None:
    points = [{"batch": 2, "context": context} for context in (259, 298, 353, 1300)]
    fitter = Fitter(points=points, variables=("context",), chunks=(256, 64, 128, 256))
    form = fitter.size(tuple(1024 * (1 + -(-point["context"] // 256)) for point in points))
    assert form is not None
    assert form.at({"context": 1261}) == 1024 * 6
