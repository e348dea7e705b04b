"""Client of LiteLLM's administration: the keys of teams."""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlencode

from llm_serving.kinds.gateway import database, gateway_program
from llm_serving.settings.errors import InputError, Unavailable, quote_value
from llm_serving.validation.load.api_key import NoRedirects

_TIMEOUT_S = 60.0
_PAGE_SIZE = 100
"""The most that LiteLLM lists at once."""

_TEXT_BEGINS = "sk-"
"""How LiteLLM's keys begin; their ids are hexadecimal."""


class Key(NamedTuple):
    """A team's key, as `key list` shows it: its text is shown once, by `key create`."""

    id: str
    """SHA-256 of its text, which revokes it."""

    team: str
    name: str
    created_at: str
    user: str = ""
    """Who has it; empty where nobody said."""


class AdminClient:
    """The administration of a deployed gateway."""

    def __init__(self, url: str, secret: str) -> None:
        """Take the base URL, and what the administration's key comes from."""
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirects)
        admin_key = database.derive_key(secret, gateway_program.ADMIN)
        self._opener.addheaders = [("Authorization", f"Bearer {admin_key}")]

    def create_key(self, team: str, name: str | None = None, user: str | None = None) -> tuple[str, Key]:
        """Create a key; return its text, which is nowhere else, and what is listed of it.

        Raises:
            InputError: another key has the name, or the gateway refuses.
        """
        # A key of this type calls models and nothing else.
        body = {"team_id": team, "key_type": "llm_api", "user_id": user or "", **({"key_alias": name} if name else {})}
        try:
            created = self._request("/key/generate", body)
        except InputError as error:
            if f"'{name}' already exists" not in str(error):
                raise
            fix = "choose another, or revoke that key: see `blueprint gateway key list`"
            raise InputError(f"--name: {quote_value(name)}: another key has it. Fix: {fix}.") from None
        return created["key"], _read_key({**created, "token": created["token_id"]})

    def list_keys(self, team: str | None = None) -> list[Key]:
        """List the keys, the oldest first.

        Raises:
            Unavailable: the gateway does not answer.
        """
        keys: list[Key] = []
        query = {"return_full_object": "true", "size": _PAGE_SIZE, **({"team_id": team} if team else {})}
        page, pages = 1, 1
        while page <= pages:
            answer = self._request(f"/key/list?{urlencode({**query, 'page': page})}")
            keys += [_read_key(row) for row in answer["keys"] if row.get("team_id")]
            page, pages = page + 1, answer["total_pages"]
        return sorted(keys, key=lambda key: key.created_at)

    def revoke_key(self, key: str) -> Key:
        """Revoke a key, given by its text, its id, or how its id begins; it is refused from then on.

        Raises:
            InputError: there is no such key, or several.
        """
        key_id = hashlib.sha256(key.encode()).hexdigest() if key.startswith(_TEXT_BEGINS) else key
        matches = [row for row in self.list_keys() if key_id and row.id.startswith(key_id)]
        if len(matches) != 1:
            reason = f"{len(matches)} keys begin so" if matches else "there is no such key"
            raise InputError(f"{quote_value(key)}: {reason}. Fix: see `blueprint gateway key list`.")
        self._request("/key/delete", {"keys": [matches[0].id]})
        return matches[0]

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        payload = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}{path}", payload, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise self._describe(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"the gateway does not answer: {error}. Fix: see `blueprint status`.") from None

    @staticmethod
    def _describe(error: urllib.error.HTTPError) -> InputError | Unavailable:
        text = error.read().decode(errors="replace")
        try:
            reason = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            reason = text[:200]
        if error.code >= 500:
            return Unavailable(f"the gateway fails: {error.code}: {reason.rstrip('.')}. Fix: see `blueprint logs`.")
        return InputError(f"the gateway refuses: {error.code}: {reason.rstrip('.')}.")


def _read_key(row: dict[str, Any]) -> Key:
    return Key(
        row["token"], row["team_id"], row.get("key_alias") or "", row.get("created_at") or "", row.get("user_id") or ""
    )
