"""Lambda handlers: boto3 and the standard library alone, each a file that is deployed as it lies here."""
