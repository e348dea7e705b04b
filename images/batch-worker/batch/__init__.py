"""Offline batches: files of requests in OpenAI's batch format, through an endpoint, exactly once."""
