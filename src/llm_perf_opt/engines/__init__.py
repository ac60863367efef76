"""Engines of others: their own code, run in a process of its own. One folder per engine."""
