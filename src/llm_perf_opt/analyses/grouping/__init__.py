"""A call graph folded into families of modules, `for N` and `parfor N`, that still adds up."""
