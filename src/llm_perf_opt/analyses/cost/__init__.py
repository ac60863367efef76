"""What a run costs: FLOPs, bytes and parameters by stage and module, beside what other sources say."""
