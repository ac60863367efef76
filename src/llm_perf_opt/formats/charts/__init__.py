"""Charts drawn as SVG, and the same charts as tables."""
