"""State boundaries: each module is one stack with a state of its own, applied and destroyed on its own."""
