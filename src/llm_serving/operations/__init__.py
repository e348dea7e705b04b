"""The fleet's stacks on AWS: planned, applied in order and destroyed in reverse, by the user's own Terraform."""
