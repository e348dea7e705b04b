"""The stream of JSON lines that Terraform and OpenTofu write with `-json` while they work.

Format: https://developer.hashicorp.com/terraform/internals/machine-readable-ui (OpenTofu writes the same messages; its
version message has the key `tofu`). Each message carries a sentence for people, from which the `.log` file is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

_VERBS: Mapping[str, str] = {
    "create": "will be created",
    "update": "will be updated in-place",
    "delete": "will be destroyed",
    "replace": "must be replaced",
    "move": "will be moved",
    "import": "will be imported",
    "remove": "will be removed from the state",
}

_NO_CHANGE = ("noop", "read")


@dataclass
class EventLog:
    """The stream of one running command: read as it grows, and written as text for people beside it."""

    stream: Path
    """JSON lines, as Terraform writes them."""

    text: Path
    """The same as a person reads it."""

    events: list[Event] = field(default_factory=list)
    _offset: int = 0
    _rest: bytes = b""

    def read_text(self) -> str:
        """Return what is written for people so far."""
        return self.text.read_text(encoding="utf-8") if self.text.is_file() else ""

    def update(self, *, final: bool = False) -> None:
        """Read the lines that were added; a last line without its end waits for the next call, unless `final`."""
        if not self.stream.is_file():
            return
        with self.stream.open("rb") as stream:
            stream.seek(self._offset)
            new_text = stream.read()
        self._offset += len(new_text)
        *lines, self._rest = (self._rest + new_text).split(b"\n")
        if final and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        if lines:
            with self.text.open("a", encoding="utf-8") as text:
                for row in lines:
                    event = parse_line(row.decode("utf-8", "replace"))
                    self.events.append(event)
                    diagnostic = event.get("diagnostic")  # with its detail
                    line = format_diagnostic(diagnostic) if diagnostic else event.get("@message", "")
                    text.write(f"{line}\n")


def parse_line(line: str) -> Event:
    """Return one message. What is not JSON (a warning about the configuration, a crash) becomes a message of text."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"type": "text", "@message": line}


def format_diagnostic(diagnostic: Mapping[str, Any]) -> str:
    """Return severity, summary, location and detail, as in `Error: creating VPC (aws_vpc.vpc)`."""
    location = diagnostic.get("address") or (diagnostic.get("snippet") or {}).get("context")
    if not location and (source := diagnostic.get("range")):
        location = f"{source['filename']}:{source['start']['line']}:{source['start']['column']}"
    title = f"{str(diagnostic.get('severity', 'error')).capitalize()}: {diagnostic.get('summary', '')}"
    details = [f"  {line}" if line else "" for line in str(diagnostic.get("detail", "")).splitlines()]
    return "\n".join([f"{title} ({location})" if location else title, *details])


def list_errors(events: Sequence[Event]) -> list[str]:
    """Return each error once, in order."""
    errors = [
        format_diagnostic(event["diagnostic"])
        for event in events
        if event.get("type") == "diagnostic" and event["diagnostic"].get("severity") == "error"
    ]
    return list(dict.fromkeys(errors))


def list_changes(events: Sequence[Event]) -> list[str]:
    """Return the changes of a plan, as in `aws_vpc.vpc will be created`; outputs where nothing else changes."""
    changes = [
        f"{event['change']['resource']['addr']} {_VERBS.get(action, action)}"
        for event in events
        if event.get("type") == "planned_change" and (action := event["change"]["action"]) not in _NO_CHANGE
    ]
    return changes or ["its outputs"]


def find_summary(events: Sequence[Event], operation: str) -> Mapping[str, int] | None:
    """Return the counts `add`, `change` and `remove` of a command; None where it has not come so far."""
    for event in reversed(events):
        if event.get("type") == "change_summary" and event["changes"]["operation"] == operation:
            counts: Mapping[str, int] = event["changes"]
            return counts
    return None


def format_progress(events: Sequence[Event]) -> str:
    """Return how far a stack is, as in `12/49 (aws_nat_gateway.a)`; "" before its first change."""
    planned = sum(
        2 if event["change"]["action"] == "replace" else 1
        for event in events
        if event.get("type") == "planned_change" and event["change"]["action"] not in _NO_CHANGE
    )
    started = _list_hooks(events, "apply_start")
    if not planned and not started:
        return ""
    completed = _list_hooks(events, "apply_complete")
    pending = [address for address, action in started if (address, action) not in completed]
    count = f"{len(completed)}/{max(planned, len(started))}"
    return f"{count} ({pending[0]})" if pending else count


def _list_hooks(events: Sequence[Event], kind: str) -> list[tuple[str, str]]:
    """Yield address and action of each message of a type, data sources left out."""
    return [
        (event["hook"]["resource"]["addr"], event["hook"]["action"])
        for event in events
        if event.get("type") == kind and event["hook"]["action"] not in _NO_CHANGE
    ]
