"""A phase as a program whose sizes are forms."""
