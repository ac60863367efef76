"""No measured run beats a bound: what others measured, held against what traces say any implementation must do."""
