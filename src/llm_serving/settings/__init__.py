"""Typed settings files: YAML with line numbers, units a person writes, errors that name the line, JSON schemas."""
