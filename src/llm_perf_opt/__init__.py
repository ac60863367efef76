"""What a multimodal LLM runs and what it costs, from the model's own code: no weights, no GPU, no edits."""

__version__ = "0.1.0"
