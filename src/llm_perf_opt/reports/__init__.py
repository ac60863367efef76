"""One file per output format: a report becomes text, and nothing here knows an analysis."""
