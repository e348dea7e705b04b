"""An AWS account: sessions, identity, S3, the state bucket, preflight checks."""
