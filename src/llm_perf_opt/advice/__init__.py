"""Where the time of a run goes, from the time as written down to the lower bound, and which change saves how much."""
