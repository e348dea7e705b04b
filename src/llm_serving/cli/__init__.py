"""The `blueprint` command line."""
