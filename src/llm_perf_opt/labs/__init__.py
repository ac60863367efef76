"""Work of its own that needs torch and takes minutes: exporting parts of a model, calibrating a machine."""
