"""No measured run beats a bound: what others measured, compared with what any implementation must do."""
