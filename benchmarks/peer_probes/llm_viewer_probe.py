"""LLM-Viewer: formulas over a Hugging Face configuration. No package: `LLM_VIEWER` names a folder with its code."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from benchmarks.peer_probes.answers import Count, Offer
from benchmarks.peer_probes.asked import Asked
from benchmarks.peer_probes.workloads import DENSE_TOKENS

HARDWARE = "nvidia_H100_SXM"


def prepare(asked: Asked) -> None:
    os.chdir(os.environ["LLM_VIEWER"])
    sys.path.insert(0, os.environ["LLM_VIEWER"])
    importlib.import_module("model_analyzer")


def count(asked: Asked) -> Count:
    total = _prefill(asked)
    return Count(printed=total["OPs"], unit="OPs", flops=round(total["OPs"]))


def memory(asked: Asked) -> Offer:
    figure = _prefill(asked)["memory_consumption"]
    return Offer(figure=figure, unit="bytes", of="weights, cache and the outputs of one layer")


def kv_cache(asked: Asked) -> Offer:
    figure = _prefill(asked)["memory_consumption_kv_cache"]
    return Offer(figure=figure, unit="bytes", of=f"the cache of {DENSE_TOKENS} tokens")


def predicted_time(asked: Asked) -> Offer:
    figure = _prefill(asked)["inference_time"]
    return Offer(figure=figure, unit="s", of=f"a prefill of {DENSE_TOKENS} tokens on an H100 SXM, as a roofline bound")


def picture(asked: Asked) -> Offer:
    graph = _analyzer(asked).config.transformer_layer_graph
    return Offer(figure=len(graph), unit="boxes", of="the graph of one layer that its web page draws")


OFFERS = {"memory": memory, "kv-cache": kv_cache, "predicted-time": predicted_time, "picture": picture}


def _prefill(asked: Asked) -> Any:
    answer = _analyzer(asked).analyze(seqlen=DENSE_TOKENS, batchsize=1, w_bit=16, a_bit=16, kv_bit=16)
    return answer["total_results"]["prefill"]


def _analyzer(asked: Asked) -> Any:
    from model_analyzer import ModelAnalyzer

    return ModelAnalyzer(str(asked.folder), HARDWARE)
