"""The call graph as a picture that a person can read: families of modules, `for N` and `parfor N`."""
