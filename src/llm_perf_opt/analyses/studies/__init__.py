"""Studies: the columns of a point, its figures, named questions, and what a page shows."""
