"""What a run costs: FLOPs, bytes and memory, as written and as necessary, checked by independent sources."""
