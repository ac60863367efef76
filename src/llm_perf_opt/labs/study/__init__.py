"""Running a study and keeping it: processes or Ray, Parquet files, SQL on them in place."""
