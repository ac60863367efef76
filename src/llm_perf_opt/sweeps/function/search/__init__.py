"""Regions in which a phase is one program."""
