"""Necessary work: what any implementation of a model must compute and read, beside what the traced code does."""
