"""Does it fit: weights, KV cache, live activations from tensor lifetimes, and what is alive at the peak."""
