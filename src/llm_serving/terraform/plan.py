"""A saved plan of Terraform or OpenTofu, read from `show -json PLANFILE`.

Format: https://developer.hashicorp.com/terraform/internals/json-format (OpenTofu writes the same one).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import Unavailable

FORMAT_MAJOR = "1"
"""Major version of the format that this module reads; a minor one only adds properties."""

NO_OP = "no-op"
_READ = "read"
UPDATED = "updated in-place"

_VERBS: Mapping[tuple[str, ...], str] = {
    ("create",): "created",
    ("update",): UPDATED,
    ("delete",): "destroyed",
    ("delete", "create"): "replaced",
    ("create", "delete"): "replaced",
    ("forget",): "removed from the state",
    ("create", "forget"): "replaced",
}


@dataclass(frozen=True)
class ResourceChange:
    """What a plan does to one resource."""

    address: str
    actions: tuple[str, ...]
    """As Terraform names them: create, update, delete; two of them for a replacement."""

    digest: str = ""
    """SHA-256 of the values before and after. Values may be secret, so a plan keeps this instead."""

    is_import: bool = False
    """Whether it exists, and this plan takes it into the state."""

    is_tainted: bool = False
    """Whether it is replaced for it was never made whole, as where an earlier apply broke off."""

    moves: tuple[str, str] | None = None
    """Its `version`, or the Capacity Block of a launch template, before and after, where that changes."""

    @property
    def verb(self) -> str:
        """The change as the end of `will be ...`."""
        return _VERBS.get(self.actions, "/".join(self.actions))


@dataclass(frozen=True)
class Plan:
    """The changes of one saved plan."""

    resources: Mapping[str, ResourceChange] = field(default_factory=dict)
    """By address; managed resources that change, and no others."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """Outputs that change, by name: a digest of the change."""

    @property
    def add(self) -> int:
        """Resources to add. A replaced one counts as one added and one destroyed, as Terraform counts."""
        return self._count("create")

    @property
    def change(self) -> int:
        """Resources to update in place."""
        return self._count("update")

    @property
    def destroy(self) -> int:
        return self._count("delete")

    @property
    def affected(self) -> dict[str, str]:
        """Existing resources that would not stay as they are: the verb by address."""
        return {address: change.verb for address, change in self.resources.items() if change.actions != ("create",)}

    @property
    def is_empty(self) -> bool:
        """Whether an apply would change nothing."""
        return not (self.resources or self.outputs)

    def select(self, kind: str) -> dict[str, ResourceChange]:
        """Return the changes of resources of a kind, such as `aws_subnet`, by their names."""
        beginning = f"{kind}."
        return {
            address.removeprefix(beginning): change
            for address, change in self.resources.items()
            if address.startswith(beginning)
        }

    def _count(self, action: str) -> int:
        return sum(action in change.actions for change in self.resources.values())


def parse_plan(text: str) -> Plan:
    """Read what `show -json PLANFILE` prints; Unavailable for no plan, or a later major version of the format."""
    payload = parse_document(text)
    version = str(payload.get("format_version", ""))
    if version.partition(".")[0] != FORMAT_MAJOR or payload.get("errored"):
        raise Unavailable(
            f"`show -json` wrote format {version or 'unknown'}, and format {FORMAT_MAJOR} of a complete plan is needed"
            ". Fix: install a Terraform or OpenTofu of a version that is supported."
        )
    try:
        return Plan(
            {change.address: change for change in _parse_resources(payload)},
            {
                name: _compute_digest(change)
                for name, change in sorted(payload.get("output_changes", {}).items())
                if change["actions"] != [NO_OP]
            },
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise Unavailable(f"Terraform's plan cannot be read: {error}") from None


def parse_document(text: str) -> dict[str, Any]:
    """Return the JSON document that a command printed; a warning about the user's configuration may precede it.

    Raises:
        Unavailable: there is none.
    """
    try:
        payload = untrusted_json.parse(text[text.index("{") :])
    except ValueError as error:
        raise Unavailable(f"Terraform's JSON cannot be read: {error}") from None
    if not isinstance(payload, dict):
        raise Unavailable("Terraform's JSON cannot be read: it is not an object")
    return payload


def find_unapproved(approved: Plan, new: Plan) -> dict[str, str]:
    """Return changes of `new` that `approved` does not have in the same form: the verb by address.

    The order of the changes in the two files does not matter; the values before and after do.
    """
    return {
        address: change.verb for address, change in new.resources.items() if approved.resources.get(address) != change
    }


def _parse_resources(payload: Mapping[str, Any]) -> Iterator[ResourceChange]:
    """Return them in order of addresses: Terraform's own order differs from plan to plan."""
    for entry in sorted(payload.get("resource_changes", []), key=lambda entry: str(entry["address"])):
        actions = tuple(entry["change"]["actions"])
        if entry["mode"] == "managed" and actions not in ((NO_OP,), (_READ,)):
            # A deposed object has the address of the one that took its place.
            deposed = f" (deposed {entry['deposed']})" if entry.get("deposed") else ""
            yield ResourceChange(
                f"{entry['address']}{deposed}",
                actions,
                _compute_digest(entry["change"]),
                is_import=bool(entry["change"].get("importing")),
                is_tainted=entry.get("action_reason") == "replace_because_tainted",
                moves=_read_move(entry["change"]),
            )


def _read_move(change: Mapping[str, Any]) -> tuple[str, str] | None:
    before, after = (
        str(side.get("version") or _find_reservation(side)) if isinstance(side, dict) else ""
        for side in (change.get("before"), change.get("after"))
    )
    return (before, after) if before and after and before != after else None


def _find_reservation(values: Mapping[str, Any]) -> str:
    """Return the reservation's id in a launch template; empty in one without, and in anything else."""
    for specification in values.get("capacity_reservation_specification") or ():
        for target in specification.get("capacity_reservation_target") or ():
            return target.get("capacity_reservation_id") or ""
    return ""


def _compute_digest(change: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(change, sort_keys=True).encode()).hexdigest()
