"""The static analysis of a session from Python: configuration, analyzer, results and their writers."""
