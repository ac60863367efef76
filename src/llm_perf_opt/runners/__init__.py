"""Where earlier scripts import the session and the analyzer from."""
