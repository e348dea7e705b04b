"""The local target: deployments as supervised processes of this machine."""
