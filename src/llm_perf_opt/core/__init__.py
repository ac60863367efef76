"""What every room may use: the call graph, the report model, hardware, the protocols, units, errors, files."""
