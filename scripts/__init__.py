"""What a person runs: the `blueprint` command line and what stands behind it."""
