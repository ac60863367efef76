"""Any module a person has at hand, with the arguments of one call."""
