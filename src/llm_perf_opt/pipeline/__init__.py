"""Wires the stations, one file per thing that can be asked for; the only room that knows them all.

Models, tracers and formats are found by name, so importing this loads no torch.
"""
