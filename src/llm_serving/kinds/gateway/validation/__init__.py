"""Validation of a gateway: every team's requests, and calls that must be refused."""
