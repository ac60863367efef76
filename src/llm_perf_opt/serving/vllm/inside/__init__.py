"""What runs in vLLM's own environment: the only code that imports vllm."""
