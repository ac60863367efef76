"""A serving engine behind a process boundary: its environment, the process in its Python, and what crosses the border.

Nothing here imports an engine. What does is in `serving/vllm/inside` and `serving/sglang/inside`.
"""
