"""Errors of steps: which of them are final."""

from __future__ import annotations

from botocore.exceptions import ClientError

from batch.store import get_code

CHANGED_FILE = "changed_file", "the input was overwritten after the job was submitted"
"""Code and message of a job whose input has another ETag."""

MISSING_FILE = "missing_file", "the input, or another object of the job, was deleted"
"""Code and message of a job of which S3 lacks an object."""

DENIED_CODES = ("AccessDenied", "403", "AllAccessDisabled", "InvalidBucketName", "NoSuchBucket")
"""Codes of S3 and KMS for which a retry is useless. A HEAD request has the status instead of a code."""


class Permanent(Exception):
    """The job cannot continue; a retry of the step would fail too."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def classify(error: Exception) -> tuple[str, str, bool]:
    """Return code and text of an error, and whether a retry is useless."""
    if isinstance(error, Permanent):
        return error.code, error.message, True
    if isinstance(error, ClientError):
        code = get_code(error)
        if code == "PreconditionFailed":  # of a read; a write's is a Conflict
            return *CHANGED_FILE, True
        if code == "NoSuchKey":
            return *MISSING_FILE, True
        return code, str(error), code in DENIED_CODES or code.startswith("KMS")
    return type(error).__name__, str(error), False
