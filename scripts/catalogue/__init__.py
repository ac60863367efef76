"""What the catalogue of models is made from: one table of names, and hyper-parameters that are written by hand."""
