"""From a model and a workload to call graphs: finding a model, running its phases, reading saved ones."""
