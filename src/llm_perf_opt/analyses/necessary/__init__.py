"""Necessary work: what any implementation of a model must compute and read, beside what the traced code does."""

from llm_perf_opt.analyses.necessary.decoder_needs import AttentionLayers, DecoderNeeds, ExpertLayers, decoder_needs
from llm_perf_opt.analyses.necessary.stage_needs import ExpertReads, NecessaryWork, Reason, necessary_by_stage

__all__ = [
    "AttentionLayers",
    "DecoderNeeds",
    "ExpertLayers",
    "ExpertReads",
    "NecessaryWork",
    "Reason",
    "decoder_needs",
    "necessary_by_stage",
]
