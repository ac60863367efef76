"""Faults as data, a scratch copy of the tree to plant them in, and who finds them: `scripts/plant_faults.py`."""
