"""State boundaries: each module is one stack with its own state, applied and destroyed separately."""
