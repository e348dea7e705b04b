"""Where a deployment runs."""
