"""What people say of servers: measurements, traffic, lists and lines of it, messages of vLLM's process. No torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from llm_perf_opt.analyses.measured.read import read_line, read_measured
from llm_perf_opt.core.errors import UsageError
from llm_perf_opt.core.number_ranges import read_range
from llm_perf_opt.core.serving.read_traffic import as_traffic, read_traffic
from llm_perf_opt.core.serving.traffic_text import read_declared, read_lengths, read_page_mix
from llm_perf_opt.core.workload import read_page_size
from llm_perf_opt.engines.vllm import environment
from llm_perf_opt.engines.vllm.jobs import TraceAnswer, read_message, write_message
from scripts.campaigns.one_kind import Kind, as_text, at

VLLM: dict[str, Any] = {
    "model_id": "org/name",
    "max_concurrency": 16,
    "completed": 10,
    "total_input_tokens": 20480,
    "total_output_tokens": 1280,
    "request_throughput": 3.2,
    "mean_ttft_ms": 510.0,
    "median_ttft_ms": 480.0,
    "mean_tpot_ms": 21.0,
    "median_tpot_ms": 20.0,
}
GENAI_PERF: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 3.2},
    "request_latency": {"unit": "ms", "avg": 3050.0, "p50": 3020.0},
    "time_to_first_token": {"unit": "ms", "avg": 510.0, "p50": 480.0},
    "inter_token_latency": {"unit": "ms", "avg": 21.0, "p50": 20.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0, "p50": 128.0},
    "input_config": {"model_names": ["org/name"], "perf_analyzer": {"stimulus": {"concurrency": 16}}},
}
_OUTCOME = {"successful": {"mean": 510.0, "median": 480.0}, "errored": {"mean": 0.0, "median": 0.0}}
GUIDELLM: dict[str, Any] = {
    "config": {"spec": {"backend": {"model": "org/name"}}},
    "benchmarks": [
        {
            "config": {"strategy": {"streams": 16}},
            "metrics": {"time_to_first_token_ms": _OUTCOME, "inter_token_latency_ms": _OUTCOME},
        }
    ],
}
METRICS = b"""vllm:time_to_first_token_seconds_bucket{le="0.04",model_name="tiny"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.08",model_name="tiny"} 20.0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="tiny"} 20.0
vllm:request_success_total{finished_reason="length",model_name="tiny"} 20.0
vllm:prompt_tokens_total{model_name="tiny"} 1280.0
vllm:generation_tokens_total{model_name="tiny"} 240.0
"""
_STEP = "Iteration({}): 0 context requests, 0 context tokens, 4 generation requests, 4 generation tokens, "
STEPS = "".join(f"{_STEP.format(number)}iteration elapsed time: 12.{number} ms\n" for number in range(5)).encode()
BENCH_SERVE: dict[str, Any] = {
    "input_lens": [64, 128, 32],
    "output_lens": [12, 0, 7],
    "start_times": [105.0, 105.5, 104.0],
    "request_rate": 2.0,
    "max_concurrency": None,
}
MOONCAKE = b"""{"timestamp": 3000, "input_length": 1500, "output_length": 20, "hash_ids": [1, 2, 9]}
{"timestamp": 1000, "input_length": 1200, "output_length": 10, "hash_ids": [1, 2, 5]}
"""
AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
DISTRIBUTION = b'rate = "20/s"\ncv = 2.5\nprompt = "uniform(100, 900)"\noutput = 50\nrequests = 30\n'


def served_kinds(folder: Path) -> list[Kind]:
    """All of them."""
    return [*_measurements(folder), *_traffic(folder), *_lines(), *_processes(folder)]


def _measurements(folder: Path) -> Iterator[Kind]:
    place = folder / "measured"
    documents = {"vllm bench serve": VLLM, "genai-perf": GENAI_PERF, "guidellm": GUIDELLM}
    for name, document in documents.items():
        good = json.dumps(document).encode()
        yield Kind(name=f"measurement, {name}", good=good, read=at(place / "run.json", read_measured))
    texts = {
        "metrics of vLLM.txt": METRICS,
        "log of steps.log": STEPS,
        "TOML.toml": b'ttft = "0.5s"\ntpot_ms = 20\nbatch = 16\nmodel = "org/name"\n',
        "CSV.csv": b"ttft_ms,tpot_ms,concurrency,input_len\n480,20,16,2048\n",
    }
    for name, text in texts.items():
        stem, _, suffix = name.rpartition(".")
        read = at(place / f"run.{suffix}", read_measured)
        yield Kind(name=f"measurement, {stem}", good=text, read=read, is_json=False)


def _traffic(folder: Path) -> Iterator[Kind]:
    place = folder / "traffic"
    good = json.dumps(BENCH_SERVE).encode()
    yield Kind(name="traffic, vllm bench serve", good=good, read=at(place / "run.json", as_traffic))
    texts = {"lines.jsonl": MOONCAKE, "table.csv": AZURE, "distribution.toml": DISTRIBUTION}
    for name, text in texts.items():
        yield Kind(name=f"traffic, {name}", good=text, read=at(place / name, read_traffic), is_json=False)
    lists: dict[str, tuple[bytes, Callable[[str], object]]] = {
        "list of lengths": (b"100\n200\n3000\n", read_lengths),
        "list of page sizes": (b"A4@150dpi,70\n1240x1754,30  # scans\n", read_page_mix),
    }
    for name, (text, read) in lists.items():
        read_file = at(place / f"{name}.txt", partial(_by_name, read))
        yield Kind(name=name, good=text, read=read_file, is_json=False)


def _by_name(read: Callable[[str], object], file: Path) -> object:
    return read(str(file))


def _lines() -> Iterator[Kind]:
    """Texts of the command line."""
    lines: dict[str, tuple[str, Callable[[str], object]]] = {
        "line of traffic": ("20/s cv=2 prompt=lognormal(800,0.8) output=200 prefixes=8x512@0.7 for 60s", _drawn),
        "line of figures": ("ttft=0.5s tpot=20ms batch=16 input_tokens=2048", lambda text: read_line(text, "x")),
        "range of numbers": ("1k..128k", lambda text: read_range(text, "context")),
        "size of a page": ("A4@150dpi", read_page_size),
    }
    for name, (good, read) in lines.items():
        yield Kind(name=name, good=good.encode(), read=partial(as_text, read), is_json=False)


def _drawn(text: str) -> object:
    """The first requests: what a distribution lets pass is drawn from here."""
    declared = read_declared(text)
    return declared, declared.traffic().requests[:20]


def _processes(folder: Path) -> Iterator[Kind]:
    file = folder / "message"
    write_message(file, TraceAnswer(files=["prefill.json"], configure_s=1.5, run_s=0.25, notes=["a note"]))
    good = file.read_bytes()
    read = at(folder / "messages" / "reply", lambda path: read_message(path, TraceAnswer))
    yield Kind(name="message of a vLLM process", good=good, read=read, is_json=False)
    yield Kind(name="name of vLLM's Python", good=b"python-of-vllm/bin/python", read=_python_of_vllm, is_json=False)


def _python_of_vllm(raw: bytes) -> object:
    """A variable that names a file which is no Python: refused, and nothing is started."""
    before = os.environ.get(environment.VARIABLE)
    os.environ[environment.VARIABLE] = os.fsdecode(raw.replace(b"\0", b"")) or "x"
    try:
        return environment.find()
    except UsageError:
        return "refused"
    finally:
        os.environ.pop(environment.VARIABLE)
        if before is not None:
            os.environ[environment.VARIABLE] = before
