"""Static graphs of parts of a model: torch.export, ONNX and torch.compile, with a reason for every refusal."""
