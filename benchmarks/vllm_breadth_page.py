"""The page of vLLM's architectures, from docs/data/vllm_breadth.json.

python -m benchmarks.vllm_breadth_page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.vllm_breadth import FILE, ROOT
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.units import format_count

PAGE = ROOT / "docs" / "vllm-breadth.md"
# A word of the reason -> what it is; the first that is found decides.
KINDS = (
    ("no configuration", "no configuration: neither transformers nor the facts have one under that name"),
    ("has no stand-in", "a GPU kernel without a stand-in"),
    ("triton", "a Triton kernel outside any op"),
    ("DeepGEMM", "a library of GPU kernels that its constructor asks for"),
    ("cutlass", "a library of GPU kernels that its constructor asks for"),
    ("torch.cuda.Stream", "a CUDA stream of its own"),
    ("ended with code", "the process ended: it took longer than three minutes, or more memory than there is"),
    ("image processor", "it reads a processor's files while it is built"),
    ("has no attribute", "the default configuration lacks what vLLM reads"),
    ("", "the default configuration does not fit vLLM's class, or another error while it is built or run"),
)


def kind_of(reason: str) -> str:
    """What sort of obstacle a reason is."""
    return next(kind for word, kind in KINDS if word in reason)


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    models: dict[str, dict[str, Any]] = found["models"]
    ran = {name: one for name, one in models.items() if "stopped_by" not in one}
    stopped = {name: one["stopped_by"] for name, one in models.items() if "stopped_by" in one}
    told = sum("configuration" in one for one in models.values())
    whole = sum(not any(one["unpriced_ops"].values()) for one in ran.values())
    equal = sum(one["flops"] == one["estimate_flops"] for one in ran.values())
    lines = [
        "# Which of vLLM's models run weightless?",
        "",
        f"**{len(ran)} of the {found['architectures']} architectures of {found['engine']} run at full size**, of "
        f"{told} for which a configuration is known. In {whole} of them every op has a price. In {equal} the matrix "
        "FLOPs of prefill and decode equal vLLM's own estimate to the last one.",
        "",
        "Each is built whole on one rank, and runs a prefill of 128 text tokens and one decode step with "
        "`--code vllm`. Encoders of images and sound are built and not fed. Configurations are the defaults of "
        "transformers' class for the architecture, or those among the facts of the tests. Data: "
        "[`vllm_breadth.json`](data/vllm_breadth.json), made by `python -m benchmarks.vllm_breadth`.",
        "",
        "## What stops the others",
        "",
        "| obstacle | architectures | for example |",
        "|---|--:|---|",
        *_obstacles(stopped),
        "",
        "## What ran",
        "",
        "| architecture | parameters | prefill, FLOPs | decode, FLOPs | vLLM's estimate | cache, B per token "
        "| unpriced ops |",
        "|---|--:|--:|--:|---|--:|--:|",
        *(_row(name, one) for name, one in ran.items()),
        "",
    ]
    return "\n".join(lines)


def _obstacles(stopped: dict[str, str]) -> Iterator[str]:
    by_kind: dict[str, list[str]] = {}
    for name, reason in stopped.items():
        by_kind.setdefault(kind_of(reason), []).append(name)
    for kind, names in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        yield f"| {kind} | {len(names)} | {', '.join(f'`{name}`' for name in names[:3])} |"


def _row(name: str, one: dict[str, Any]) -> str:
    flops, told = one["flops"], one["estimate_flops"]
    verdict = "none" if not any(told.values()) else "equal" if flops == told else "differs"
    decode = format_count(flops["decode"]) if "decode" in flops else ""
    return (
        f"| `{name}` | {format_count(one['parameters'])} | {format_count(flops['prefill'])} | {decode} | {verdict} "
        f"| {format_count(one['cache_bytes_per_token'])} | {sum(one['unpriced_ops'].values()) or ''} |"
    )


def main() -> None:
    """Write the page."""
    write_whole(PAGE, [page(json.loads(FILE.read_text())).encode()])


if __name__ == "__main__":
    main()
