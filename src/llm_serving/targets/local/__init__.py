"""The local target: a deployment as supervised processes of this machine."""
