"""Fit to serve: weights, cache and working memory of a serving engine, and the largest batch and context they leave."""
