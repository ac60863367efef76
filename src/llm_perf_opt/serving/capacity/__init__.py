"""Requests that an engine answered: how long they waited, what limits it, what it costs, the smallest fleet."""
