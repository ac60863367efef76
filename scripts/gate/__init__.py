"""The gates: what runs when, on which tests, and how long each part took."""
