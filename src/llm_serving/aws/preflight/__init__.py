"""Read-only checks of an AWS account before a fleet is created."""
