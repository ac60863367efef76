"""Any module that a script passes in, with the arguments of one call."""
