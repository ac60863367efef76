"""A measurement of the user's: read in the form that people have it, and used to correct a prediction."""
