"""The same answers for a script or a notebook: objects that print as text, show as HTML and become data frames."""
