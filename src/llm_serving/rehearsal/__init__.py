"""The rehearsal: the real Terraform with the real AWS provider, against an AWS embedded in this machine."""
