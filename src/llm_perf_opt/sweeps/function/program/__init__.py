"""A phase as a program with sizes that are forms."""
