"""Lambda handlers: boto3 and the standard library only, each a single file that is deployed unchanged."""
