"""From a checkpoint or an option to graphs in those formats, and what the header and the notes say of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_perf_opt.core.callgraph import CallGraph, from_json_dict, to_json_dict
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.report import Level
from llm_perf_opt.core.target import Target
from llm_perf_opt.core.tensor_formats import StoredFormats
from llm_perf_opt.core.workload import Deployment, Workload
from llm_perf_opt.costs.run_description import deployment_notes
from llm_perf_opt.tracing.deployed_traces import deployed, redeployed
from tests.costs.memory.made_decode import made_decode
from tests.costs.stored_runs import mixture, storage_bytes, stored

AS_IT_IS = Deployment()


class Plain:
    """An adapter that knows of no checkpoint."""

    title = "plain"

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        raise NotImplementedError


class Checkpoint(Plain):
    def __init__(self, formats: StoredFormats) -> None:
        self._formats = formats

    def stored_formats(self, graph: CallGraph) -> StoredFormats:
        return self._formats


MXFP4 = StoredFormats(
    origin="mxfp4",
    weights=dict.fromkeys(("layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.down_proj"), "mxfp4"),
)


def notes(*graphs: CallGraph) -> list[str]:
    return [note.text for note in deployment_notes(graphs)]


def test_an_adapter_without_a_checkpoint_leaves_the_trace_as_it_is() -> None:
    graph = mixture()
    assert deployed(Plain(), [graph], AS_IT_IS) == (graph,)
    assert notes(graph) == []


def test_a_checkpoint_says_its_own_formats() -> None:
    (graph,) = deployed(Checkpoint(MXFP4), [mixture()], AS_IT_IS)
    assert graph.deployment == {"weights_from": "checkpoint: mxfp4", "weights": "mxfp4"}
    assert {name for name, dtype in stored(graph).items() if dtype.startswith("mxfp4")} == set(MXFP4.weights)


def test_the_note_says_what_is_stored_in_which_format_and_how_much_it_is() -> None:
    """The stacks take 2 x 4 x (3,072 + 192) bytes where groups divide evenly, and down to 96 inputs in 3 groups.

    gate_up: 96 outputs of 64 inputs, 2 scales each; down: 64 outputs of 96 inputs, 3 scales each: both 192 scales.
    Dense are 2 x (2 x 12,800 + 2 x 4,096 + 6,144 + 256) bytes.
    """
    (graph,) = deployed(Checkpoint(MXFP4), [mixture()], AS_IT_IS)
    stacks, dense = 2 * 4 * (3_072 + 192), 2 * (2 * 12_800 + 2 * 4_096 + 6_144 + 256)
    assert stacks + dense == 106_496  # 104 KiB
    assert notes(graph) == [
        "Weights: mxfp4 in 2 expert stacks, bfloat16 elsewhere: 104 KiB stored (checkpoint: mxfp4)."
    ]


def test_what_was_not_understood_is_a_warning_in_every_report() -> None:
    unread = StoredFormats(origin="quark", warnings=("The quantization_config (quark) was not understood.",))
    (graph,) = deployed(Checkpoint(unread), [mixture()], AS_IT_IS)
    told = list(deployment_notes([graph]))
    assert [note.text for note in told if note.level is Level.WARNING] == list(unread.warnings)
    assert told[0].text.startswith("Weights: bfloat16: ")


def test_an_option_goes_before_the_checkpoint_and_its_warnings() -> None:
    unread = replace(MXFP4, warnings=("half of it was not understood",))
    (graph,) = deployed(Checkpoint(unread), [mixture()], Deployment(weights="int4"))
    assert graph.deployment == {"weights": "int4-g128", "weights_from": "what-if"}
    assert stored(graph)["layers.0.mlp.experts.down_proj"] == "int4-g128"
    assert notes(graph)[1] == (
        "What-if: linear layers and expert stacks use this format; "
        "embeddings, output head, norms, routers and convolutions keep their type."
    )


def test_sixteen_bits_undo_a_checkpoint() -> None:
    (awq,) = deployed(Checkpoint(MXFP4), [mixture()], AS_IT_IS)
    (graph,) = redeployed([awq], Deployment(weights="bf16"))
    assert stored(graph) == stored(mixture())
    assert storage_bytes(graph, "layers.0.mlp.experts.down_proj") == 4 * 64 * 96 * 2


def test_the_cache_of_a_checkpoint_is_stored_as_it_says_unless_asked_otherwise() -> None:
    eight_bits = StoredFormats(origin="modelopt", cache="float8_e4m3fn")
    (graph,) = deployed(Checkpoint(eight_bits), [made_decode()], AS_IT_IS)
    assert (graph.deployment["cache"], graph.deployment["cache_from"]) == ("float8_e4m3fn", "checkpoint")
    assert notes(graph)[0].endswith("Cache: float8_e4m3fn (checkpoint).")
    (other,) = deployed(Checkpoint(eight_bits), [made_decode()], Deployment(cache="int8"))
    assert (other.deployment["cache"], other.deployment["cache_from"]) == ("int8", "what-if")


def test_a_checkpoint_with_a_cache_may_be_traced_without_a_decode() -> None:
    eight_bits = StoredFormats(origin="modelopt", cache="float8_e4m3fn")
    (graph,) = deployed(Checkpoint(eight_bits), [mixture()], AS_IT_IS)
    assert "cache" not in graph.deployment


def test_a_cache_that_is_not_there_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="trace at least one decode step"):
        redeployed([mixture()], Deployment(cache="fp8"))


def test_the_deployment_survives_a_file_and_older_files_have_none() -> None:
    (graph,) = deployed(Checkpoint(MXFP4), [mixture()], AS_IT_IS)
    document = to_json_dict(graph)
    assert from_json_dict(document).deployment == graph.deployment
    del document["deployment"]
    assert from_json_dict(document).deployment == {}
