"""Training steps on this processor with torch's own counters, next to the same steps without weights."""
