"""One file per output format: a report becomes text, a view a drawing, and nothing here knows an analysis."""
