"""How long a trace takes: one time model with several sources of rates, lower bounds, and rooflines."""
