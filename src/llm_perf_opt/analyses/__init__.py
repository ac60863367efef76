"""Pure functions over a call graph; no torch, so they run on a saved trace."""
