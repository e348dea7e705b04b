"""The catalog of EC2 instance types: data with its sources, and the loader."""
