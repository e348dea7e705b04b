"""One idea each: a network, an encryption key, a private bucket, flow logs. Each adds its resources to the stack given.

They are functions, not nested CDKTF constructs: a resource keeps a plain address (`aws_s3_bucket.models`) that stays
when the code around it moves, where a nested construct's address carries a hash of its path and a move would replace
the resource.
"""
