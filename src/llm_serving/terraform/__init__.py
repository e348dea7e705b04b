"""Terraform and OpenTofu: found, run, and their answers read."""
