"""LiteLLM's hook that refuses requests: copied beside its config.yaml, it runs in LiteLLM's own environment.

With `allow_requests_on_db_unavailable` LiteLLM lets keys that it read lately pass while its database is away, and every
other key too, known or not, as a user of its own. The hook refuses that user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

TEAMS_VARIABLE = "GATEWAY_TEAMS"
UNVERIFIED_USER = "__db_unavailable_fallback__"
"""LiteLLM's user for a key that it could not look up. Source: 1.106.0, proxy/auth/auth_exception_handler.py."""

_PROMPT_FIELDS = ("messages", "prompt", "input", "instructions", "system", "tools", "query", "documents")


class RequestGuard(CustomLogger):  # type: ignore[misc] # of another environment
    """Refuses requests before any deployment is called."""

    def __init__(self, teams: Mapping[str, Any]) -> None:
        """Take the limits of the blueprint's teams."""
        super().__init__()
        self._limits = {name: team.get("prompt_characters") for name, team in teams.items()}

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: object,  # noqa: ARG002 - LiteLLM names the arguments
        data: dict[str, Any],
        call_type: str,  # noqa: ARG002
    ) -> None:
        """Refuse a key that could not be looked up with 503, and a prompt beyond the team's limit with 413."""
        if user_api_key_dict.user_id == UNVERIFIED_USER:
            message = "The key cannot be verified: the gateway's database does not answer"
            raise HTTPException(503, {"error": {"message": message, "type": "service_unavailable"}})
        limit = self._limits.get(user_api_key_dict.team_id)
        if limit is None:
            return
        characters = sum(count_characters(data.get(field)) for field in _PROMPT_FIELDS)
        if characters > limit:
            message = f"The prompt has {characters:,} characters; the team's limit is {limit:,}"
            raise HTTPException(413, {"error": {"message": message, "type": "prompt_too_long"}})

    async def async_filter_listed_models(self, user_api_key_dict: Any, model_names: Sequence[str]) -> Sequence[str]:
        """List no model to a key that could not be looked up."""
        return [] if user_api_key_dict.user_id == UNVERIFIED_USER else model_names


def count_characters(value: Any) -> int:
    """Count the characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(count_characters, value.values()))
    return sum(map(count_characters, value)) if isinstance(value, list) else 0


GUARD = RequestGuard(json.loads(os.environ.get(TEAMS_VARIABLE, "{}")))
