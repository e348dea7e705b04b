"""LiteLLM's hook that refuses long prompts: copied beside its config.yaml, it runs in LiteLLM's own environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

TEAMS_VARIABLE = "GATEWAY_TEAMS"
_PROMPT_FIELDS = ("messages", "prompt", "input", "instructions", "system", "tools", "query", "documents")


class PromptLimit(CustomLogger):  # type: ignore[misc] # of another environment
    """Holds each request against the limit of its team, before any deployment is called."""

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
        """Refuse a prompt beyond the team's limit with 413."""
        limit = self._limits.get(user_api_key_dict.team_id)
        if limit is None:
            return
        characters = sum(count_characters(data.get(field)) for field in _PROMPT_FIELDS)
        if characters > limit:
            message = f"The prompt has {characters:,} characters; the team's limit is {limit:,}"
            raise HTTPException(413, {"error": {"message": message, "type": "prompt_too_long"}})


def count_characters(value: Any) -> int:
    """Count the characters of all texts in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(count_characters, value.values()))
    return sum(map(count_characters, value)) if isinstance(value, list) else 0


LIMIT = PromptLimit(json.loads(os.environ.get(TEAMS_VARIABLE, "{}")))
