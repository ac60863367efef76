"""Where earlier scripts import what watches a model from."""
