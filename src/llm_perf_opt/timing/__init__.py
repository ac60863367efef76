"""How long it takes: kernels, sources of rates, bands and lower bounds, eager and as an engine runs it."""
