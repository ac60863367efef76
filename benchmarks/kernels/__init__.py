"""How well the tables of measured kernels answer for shapes that were left out of them."""
