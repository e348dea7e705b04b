"""What runs a model: arithmetic that an engine does at its start."""
