"""Full-size models of transformers, counted by several sources."""
