"""SGLang: its scheduler on a virtual clock, behind a process boundary.

Nothing here imports sglang but `inside`, which runs in the Python that has it.
"""
