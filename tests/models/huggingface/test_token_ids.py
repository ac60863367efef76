"""Token ids: one row in 8 bytes an id, whatever the batch, and the same tensor as before."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import torch

from llm_perf_opt.models.huggingface.inputs.plan import InputSizes, Integers, Run, Subject, integers, make_inputs
from llm_perf_opt.models.huggingface.inputs.text import modality_of_each_token, token_ids

CONFIG = SimpleNamespace(vocab_size=12, eos_token_id=7, to_dict=dict)


def subject(batch: int, tokens: int) -> Subject:
    return Subject(
        model_type="m",
        config=CONFIG,
        main_input="input_ids",
        accepts=frozenset(),
        required=frozenset(),
        sizes=InputSizes(batch=batch, prompt_tokens=tokens),
    )


def test_every_row_of_the_batch_holds_the_same_ids() -> None:
    """Ordinary are 5 to 11 without the special 7; the run is a placeholder 3 between 1 and 2, twice."""
    run = Run(kind="image", token=3, count=2, before=(1,), after=(2,))
    row = [1, 3, 3, 2, 5, 6, 8, 9, 10, 11, 5, 6]
    ids = token_ids(subject(3, 8), 8, [run])
    made = make_inputs({"ids": ids, "kinds": modality_of_each_token(subject(3, 8), [run])})
    assert torch.equal(made["ids"], torch.tensor([row] * 3))  # type: ignore[arg-type]
    assert torch.equal(made["kinds"], torch.tensor([[0, 1, 1, 0] + [0] * 8] * 3))  # type: ignore[arg-type]
    assert torch.equal(make_inputs({"grid": integers([[1, 4, 6]])})["grid"], torch.tensor([[1, 4, 6]]))  # type: ignore[arg-type]


def test_a_plan_holds_one_row_in_eight_bytes_an_id() -> None:
    """2**20 ids are 8 MiB; a tuple of a batch of 64 would have been 512 MiB."""
    tracemalloc.start()
    ids = token_ids(subject(64, 2**20), 2**20)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(ids, Integers)
    assert ids.shape == (64, 2**20)
    assert peak_bytes < 3 * 2**23
