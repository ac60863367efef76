"""Figures and times of a program as forms."""
