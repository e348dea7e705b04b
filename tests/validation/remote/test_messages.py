"""How the URLs of a load's inputs fit into one secret."""

from __future__ import annotations

import json
import secrets

from llm_serving.targets.on_aws.load_drivers import MAX_DRIVERS
from llm_serving.validation.remote.messages import pack_urls, unpack_urls

SECRET_BYTES = 65_536
"""Most of a secret of AWS Secrets Manager. Source: its user guide, "AWS Secrets Manager quotas", 2026-11."""


def test_the_urls_of_the_largest_load_fit_into_a_secret() -> None:
    """A URL has a session token of up to 2,048 letters, the same in all, and a signature of its own."""
    token = secrets.token_urlsafe(1536)
    urls = [
        f"https://bucket.s3.us-west-2.amazonaws.com/load-tests/nonce/input-{index}.json?X-Amz-Security-Token={token}"
        f"&X-Amz-Signature={secrets.token_hex(32)}"
        for index in range(MAX_DRIVERS)
    ]
    assert len(json.dumps(urls)) > SECRET_BYTES  # the negative control
    packed = pack_urls(urls)
    assert len(packed) < SECRET_BYTES / 4
    assert unpack_urls(packed) == urls
