"""Served requests against the times that measured kernels give: estimates, fit, judgement, page."""
