"""Studies: a declared grid, its tasks on processes or Ray, its columns in Parquet, questions in SQL."""
