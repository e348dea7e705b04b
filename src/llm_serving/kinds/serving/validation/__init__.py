"""Validation of `kind: serving`: what a load is sent to, and what its report says of engines and weights."""
