"""A model that is spread over ranks: what each kind of rank holds, runs and exchanges, and which plan is best."""
