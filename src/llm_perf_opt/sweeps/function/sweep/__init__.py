"""Points of a grid, what they show, tables and charts."""
