"""Validation of a batch: rows through the Batch API, judged against its SLO."""
