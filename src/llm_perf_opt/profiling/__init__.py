"""Where earlier scripts import the writers of the static analysis from."""
