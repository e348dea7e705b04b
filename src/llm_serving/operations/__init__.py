"""The fleet's stacks on AWS: planned, applied in order and destroyed in reverse, by the user's own Terraform.

What begins with `require` raises `CheckFailed`, whose message names what speaks against it, and the fix.
"""
