"""Offline batches: files of requests through an endpoint."""
