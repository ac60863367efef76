"""A profile run from its request to its folder: pages, timed passes, costs, device, artifacts, sweeps."""
