"""vLLM: its scheduler on a virtual clock and its model classes without weights, behind a process boundary.

Nothing here imports vllm but `inside`, which runs in the Python that has it.
"""
