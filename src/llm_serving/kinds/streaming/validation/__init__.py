"""`blueprint validate` of a streaming deployment."""
