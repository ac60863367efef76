"""What every room that runs a model shares: real weights for it, watched calls, single parts of it on their own."""
