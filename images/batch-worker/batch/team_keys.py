"""Keys of teams: `{"TEAM": ["sha256:HEX", ...]}`, from a secret of AWS Secrets Manager or a file of this machine.

images/router has this module too, from a second build context.

A document has hashes only, so nobody who reads it can call the API. Keys are long random texts, as `blueprint batch
key` makes them: a hash of a text that people choose could be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

log = logging.getLogger("team-keys")

EVERY_TEAM = "*"
"""In place of a team: the operator, who sees all of them."""

REREAD_INTERVAL_S = 60.0
"""Seconds after which the document is read again: new keys count, and removed ones do not, without a restart."""

_MAX_FILE_BYTES = 2**20
_TEAM, _HASH = re.compile("[a-z][a-z0-9-]{0,30}[a-z0-9]"), re.compile("sha256:([0-9a-f]{64})")
_EXAMPLE = '{"TEAM": ["sha256:HEX"]}'


class BadKeys(Exception):
    """The document cannot be used; the text has the reason and the fix."""


class TeamKeys:
    """The keys of all teams."""

    def __init__(self, read: Callable[[], str], now: Callable[[], float] = time.monotonic) -> None:
        """Read the document.

        Args:
            read: returns its text; may raise any error.
            now: a clock in seconds.

        Raises:
            BadKeys: it has another form.
        """
        self._read, self._now, self._lock = read, now, threading.Lock()
        self._teams = parse(read())
        self._read_at = now()

    def find_team(self, key: str) -> str | None:
        """Find the team of a key, EVERY_TEAM for an operator's; None if the key is nobody's. May block."""
        self._reread()
        digest, owner = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest(), None
        for team_digest, team in self._teams.items():  # all of them: the time says nothing about the keys
            if hmac.compare_digest(team_digest, digest):
                owner = team
        return owner

    def _reread(self) -> None:
        """Read the document again if it is time; one that cannot be read leaves the keys as they are."""
        with self._lock:
            if self._now() - self._read_at < REREAD_INTERVAL_S:
                return
            self._read_at = self._now()
        try:
            self._teams = parse(self._read())
        except Exception as error:  # noqa: BLE001 - of any source
            log.warning("The keys stay as they are: %s", error)


def parse(text: str) -> Mapping[str, str]:
    """Parse a document; returns the team of each hash.

    Raises:
        BadKeys: it has another form.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadKeys(f"team keys: the document is not a JSON object. Fix: write {_EXAMPLE}.")
    teams: dict[str, str] = {}
    for team, hashes in document.items():
        if team != EVERY_TEAM and not is_team(team):
            reason = "it is not the name of a team: a-z, 0-9 and -"
            raise BadKeys(f"team keys: {json.dumps(team)}: {reason}. Fix: rename it.")
        for entry in hashes if isinstance(hashes, list) else [None]:
            match = _HASH.fullmatch(entry) if isinstance(entry, str) else None
            if match is None:
                raise BadKeys(f"team keys: {team}: it has no list of hashes. Fix: write {_EXAMPLE}.")
            if teams.setdefault(match[1], team) != team:
                raise BadKeys(f"team keys: {team}: {teams[match[1]]} has the same key. Fix: give each its own.")
    return teams


def is_team(name: str) -> bool:
    return _TEAM.fullmatch(name) is not None


def read_file(file: Path) -> str:
    """Read a document of this machine, which only its owner may read or write.

    Raises:
        BadKeys: it cannot be read, or others may read or write it.
    """
    try:
        # Not blocked by a pipe; the mode is that of the file that is read.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as source:
            mode = os.fstat(source.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise BadKeys(f"{file}: its mode is {stat.filemode(mode)}. Fix: chmod 600 {file}.")
            text = source.read(_MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeys(f"{file}: {error}. Fix: write {_EXAMPLE} to it.") from None
    if len(text) > _MAX_FILE_BYTES:
        raise BadKeys(f"{file}: it is larger than {_MAX_FILE_BYTES} bytes. Fix: keep one hash for each key.")
    return text
