"""The results of the export lab as tables, with the FLOPs of each part from three sources."""
