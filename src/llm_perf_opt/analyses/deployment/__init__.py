"""The same trace as a deployment stores it: weights and cache in other formats."""
