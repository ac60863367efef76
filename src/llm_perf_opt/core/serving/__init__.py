"""Serving: requests, the settings of an engine, the time of its steps, and what a replay of them leaves."""
