"""What a replica would do, computed without one: time of a step, simulated requests, the search for a deployment."""
