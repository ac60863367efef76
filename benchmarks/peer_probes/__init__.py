"""One file per tool: how a user of it would ask for the cost of a model, and for what else it offers."""
