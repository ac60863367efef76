"""Which parts of a model become static graphs: torch.export, ONNX and torch.compile on single parts."""
