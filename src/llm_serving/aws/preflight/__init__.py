"""Preflight: what of a fleet its AWS account can hold, asked before anything is made; nothing is ever changed."""
