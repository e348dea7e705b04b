"""Send a load: its plan, its prompts, its users, and what each answer was. Runs inside Locust, except for the plan."""
