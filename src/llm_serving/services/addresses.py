"""Forms of addresses that blueprints of several kinds name, each kind with its own example."""

from __future__ import annotations

from llm_serving.settings.units import TextFormat


def build_endpoint_format(example: str) -> TextFormat:
    """Return the form of the URL of an endpoint that answers requests."""
    return TextFormat(
        r"https?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?",
        "the base URL of an OpenAI-compatible endpoint",
        example,
    )


def build_cache_format(example: str) -> TextFormat:
    """Return the form of the URL of a cache."""
    return TextFormat(
        r"rediss?://[A-Za-z0-9.-]+(?::[0-9]{1,5})?(?:/[0-9]{1,2})?",
        "the address of Valkey or Redis, without user and password",
        example,
    )
