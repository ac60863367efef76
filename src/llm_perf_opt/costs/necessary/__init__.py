"""Necessary work: what any implementation of a model must compute and read, next to what the traced code does."""
