"""What it takes to serve traffic: requests, engine settings, what fits, replays, plans and fleets."""
