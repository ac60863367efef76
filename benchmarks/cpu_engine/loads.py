"""What is served: two small models, three kinds of traffic each, and what the engine is told."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.vllm_schedules.cases import Case
from llm_perf_opt.core.serving.engine_settings import EngineSettings
from llm_perf_opt.core.serving.read_traffic import as_traffic
from llm_perf_opt.core.serving.requests import Traffic

REPEATS = 3
DTYPE = "float32"
_LENGTHS = "prompt=lognormal(120,0.6) output=lognormal(24,0.5)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Case):
    """One model under one kind of traffic, in the type whose products a processor has instructions for."""

    text: str

    def settings(self) -> EngineSettings:
        """As the case says, in another type."""
        return replace(super(Load, self).settings(), dtype=DTYPE)

    def traffic(self) -> Traffic:
        """The declared requests, drawn from one seed."""
        return as_traffic(self.text)


def loads(model: str) -> dict[str, Load]:
    """By name. The rates keep the engine busy about two thirds of the time."""
    rate, requests = {"tiny": ("20/s", 200), "llama-200m": ("0.3/s", 16)}[model]
    texts = {
        "8 at once": f"8 at once {_LENGTHS} requests={requests} seed=1",
        "Poisson": f"{rate} {_LENGTHS} requests={requests} seed=2",
        "all at the start": f"{requests} at once {_LENGTHS} requests={requests} seed=3",
    }
    return {
        name: Load(model=model, tokens=256, sequences=16, blocks=1000, more={"enable_prefix_caching": False}, text=text)
        for name, text in texts.items()
    }


MODELS = ("tiny", "llama-200m")
