"""Commands that serving deployments alone have."""
