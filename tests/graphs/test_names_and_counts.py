"""Loops read from names, classes and counts, where a trace has no data flow."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.core.callgraph import from_json_dict, read_callgraph
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.graphs.view import group
from tests.examples import examples
from tests.graphs.made_runs import drawn

DIALECTS = Path(__file__).parents[1] / "core" / "callgraph" / "dialects"
CLASSED = [
    "bare-tensors.json",
    "dsocr-call-graph-hooks.json",
    "events-alone.json",
    "first-observation.json",
    "nested-children.json",
    "passes.json",
    "torchlens/dsocr-call-graph-torchlens.json",
]


@pytest.mark.parametrize("name", CLASSED)
def test_every_dialect_shows_the_loops_of_the_run(name: str) -> None:
    view = group(read_callgraph(DIALECTS / name))
    loops = {label.replace("@ model.", "@ "): loop for label, loop in drawn(view).items() if loop}
    assert loops == {
        "ImageEncoderViT @ sam_model": "parfor 2",
        "Block @ sam_model.blocks.[0-11]": "for 12",
        "VitModel @ vision_model": "parfor 2",
        "NoTPTransformerBlock @ vision_model.transformer.layers.[0-23]": "for 24",
        "MlpProjector @ projector": "parfor 2",
        "DeepseekV2DecoderLayer @ layers.[1-3]": "for 3",
        "DeepseekV2MLP @ layers.[1-3].mlp.experts.[0-7]": "parfor 6-8 of 8",
    }
    assert "guessed from names, classes and counts" in " ".join(view.caption)
    assert view.totals.flops is view.totals.bytes_moved is view.totals.parameters is None


@pytest.mark.parametrize("name", ["counts-alone.json", "edges-alone.json"])
def test_loops_do_not_need_classes(name: str) -> None:
    loops = {
        label.replace("@ model.", "@ "): loop for label, loop in drawn(group(read_callgraph(DIALECTS / name))).items()
    }
    assert loops["? @ sam_model.blocks.[0-11]"] == "for 12"
    assert loops["? @ vision_model"] == "parfor 2"
    assert loops["? @ layers.[1-3].mlp.experts.[0-7]"] == "parfor 6-8 of 8"


def test_the_runtime_log_and_the_structure_confirm_each_other() -> None:
    caption = group(read_callgraph(DIALECTS / "torchlens" / "dsocr-call-graph-torchlens.json")).caption
    assert "Runtime: 1 image, 4 crops, decoder depth 4, which the structure confirms." in caption


def test_a_runtime_fact_that_the_structure_contradicts_is_a_warning() -> None:
    calls = {"sam": 3, "layers.0": 1, "layers.1": 1}
    events = [{"kind": "vision_inputs", "num_images": 1, "num_crops": 4}, {"kind": "llm_stack", "num_layers": 5}]
    caption = group(from_json_dict({"call_counts": calls, "runtime_events": events})).caption
    assert "Warning: sam ran 3 times, but the images and crops need 2." in caption
    assert any(line.startswith("Warning: the decoder should have 5 layers") for line in caption)


def loops_of(calls: dict[str, int], types: dict[str, str] | None = None) -> dict[str, str]:
    document = {"call_counts": {"": 1, **calls}, "module_types": types or {}}
    return {label: loop for label, loop in drawn(group(from_json_dict(document))).items() if loop}


def test_layers_run_once_each_per_call_of_their_caller() -> None:
    assert loops_of({"layers.0": 1, "layers.1": 1, "layers.2": 1}) == {"? @ layers.[0-2]": "for 3"}


def test_siblings_that_run_unequally_often_are_experts() -> None:
    assert loops_of({"parts.0": 1, "parts.1": 3, "parts.2": 1}) == {"? @ parts.[0-2]": "parfor 3 parfor 1-3"}


def test_a_router_beside_them_makes_siblings_experts() -> None:
    equal = {"blocks.0": 1, "blocks.1": 1}
    assert loops_of(equal) == {"? @ blocks.[0-1]": "for 2"}
    assert loops_of({"gate": 1, **equal}) == {"? @ blocks.[0-1]": "parfor 2"}
    types = {"choose": "TopKRouter", "blocks.0": "Expert", "blocks.1": "Expert"}
    assert loops_of({"choose": 1, **equal}, types) == {"Expert @ blocks.[0-1]": "parfor 2"}


def test_heads_and_pyramids_are_numbered_too_and_nothing_is_said_of_them() -> None:
    """As in detection models, where data flow shows that these run side by side."""
    for container in ("class_embed", "input_proj", "lateral_convs", "linear_projections"):
        assert loops_of({f"{container}.0": 1, f"{container}.1": 1}) == {}


def test_what_a_called_container_runs_is_a_chain_whatever_its_name() -> None:
    assert loops_of({"neck": 1, "neck.0": 1, "neck.1": 1}) == {"? @ neck.[0-1]": "for 2"}


def test_experts_that_never_ran_are_counted_among_them() -> None:
    types = {f"block.experts.{number}": "Expert" for number in range(4)}
    assert loops_of({"block.experts.2": 1}, types) == {"Expert @ block.experts.[0-3]": "parfor 1 of 4"}


def test_a_stack_may_end_early_and_a_gap_in_it_is_a_choice() -> None:
    types = {f"h.{number}": "Layer" for number in range(4)}
    assert loops_of({"h.0": 1, "h.1": 1}, types) == {"Layer @ h.[0-3]": "for 2 of 4"}
    assert loops_of({"h.0": 1, "h.3": 1}, types) == {"Layer @ h.[0-3]": "parfor 2 of 4"}


def test_a_chain_of_one_class_is_cut_where_another_class_stands_between() -> None:
    types = {"neck.0": "Conv2d", "neck.1": "Norm", "neck.2": "Conv2d", "neck.3": "Conv2d"}
    found = loops_of(dict.fromkeys(["neck", *types], 1), types)
    assert found == {"Conv2d @ neck.[2-3]": "for 2"}


def test_layers_that_run_several_times_per_call_are_not_said_to_be_a_chain() -> None:
    assert loops_of({"layers.0": 2, "layers.1": 2}) == {"? @ layers.[0-1]": "parfor 2"}  # over calls, not instances


def test_experts_of_many_calls_are_told_as_the_mean_per_call() -> None:
    """Ten steps that picked two experts each: 8 + 5 + 4 + 3 calls."""
    calls = {"": 10, "mlp": 10} | {f"mlp.experts.{number}": count for number, count in enumerate((8, 5, 4, 3))}
    assert drawn(group(from_json_dict({"call_counts": calls})))["? @ mlp.experts.[0-3]"] == "parfor 2 of 4"


def test_events_tell_a_chain_from_layers_in_another_order() -> None:
    def run(*paths: str) -> list[list[str]]:
        return [["enter", ""], *(event for path in paths for event in (["enter", path], ["exit", path])), ["exit", ""]]

    assert (
        drawn(group(from_json_dict({"events": run("layers.0", "layers.1", "layers.2")})))["? @ layers.[0-2]"] == "for 3"
    )
    assert drawn(group(from_json_dict({"events": run("layers.0", "layers.2", "layers.1")})))["? @ layers.[0-2]"] == ""
    assert drawn(group(from_json_dict({"events": run("layers.0", "layers.2", "layers.0")})))[
        "? @ layers.[0,2]"
    ].startswith("parfor 2")


def test_without_the_outermost_module_its_layers_tell_how_often_it_ran() -> None:
    calls = {"embed": 5, "vision": 2, "layers.0": 5, "layers.1": 5, "head": 10}
    loops = {label: loop for label, loop in drawn(group(from_json_dict({"call_counts": calls}))).items() if loop}
    assert loops == {"? @ layers.[0-1]": "for 2", "? @ head": "parfor 2"}


PATHS = st.sampled_from(["", "a", "a.0", "a.1", "a.2", "a.1.b", "a.1.gate", "b.experts.0", "b.experts.1", "b", "c"])


@settings(max_examples=examples(150), deadline=None)
@given(
    calls=st.dictionaries(PATHS, st.integers(1, 5), min_size=1),
    edges=st.dictionaries(st.tuples(PATHS, PATHS), st.integers(1, 9), max_size=12),
    types=st.dictionaries(PATHS, st.sampled_from(["A", "B", "MoEGate", "ModuleList"])),
)
def test_any_older_graph_is_refused_or_has_a_view_that_adds_up(
    calls: dict[str, int], edges: dict[tuple[str, str], int], types: dict[str, str]
) -> None:
    rows = [[parent, child, count] for (parent, child), count in edges.items()]
    try:
        graph = from_json_dict({"call_counts": calls, "edges": rows, "module_types": types})
    except PerfOptError as error:
        assert error.why
        return
    assert sum(root.calls for root in group(graph).roots) == sum(graph.root_calls.values())
