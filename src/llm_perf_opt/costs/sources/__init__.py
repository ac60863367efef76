"""Independent counters: each is asked for the figures of every stage and says what it cannot count."""
