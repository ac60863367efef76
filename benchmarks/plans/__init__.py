"""Two measured plans of one model: does the estimate of a rank's step put the faster one first?"""
