"""Names of models: which folder of configuration each stands for, and where it came from. Nothing loads torch."""
