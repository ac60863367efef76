"""What the breadth sweeps share: capped subprocesses, the full-size run of one model type, the tables in docs."""
