"""What others recorded on a GPU, read back: torch.profiler's Chrome traces and the exports of Nsight Systems."""
