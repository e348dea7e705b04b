"""The CDKTF app: what a fleet rents, as Terraform stacks."""
