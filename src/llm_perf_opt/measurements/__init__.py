"""Measurements of the user's own: how they are made and read, and what they correct in a prediction."""
