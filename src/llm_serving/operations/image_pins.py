"""Digests of images, asked of their registries and kept in images.lock.yaml beside the fleet file; charts' beside them.

A tag of a registry may move; a digest is the image itself. Source of the requests: OCI distribution specification 1.1,
"Pulling manifests", and the token authentication that Docker's registries use.
"""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from llm_serving import processes
from llm_serving.catalog import images
from llm_serving.fleet import image_cache
from llm_serving.loopback import is_loopback
from llm_serving.settings import untrusted_json
from llm_serving.settings.errors import InputError, Unavailable

FILE = "images.lock.yaml"
"""Beside the fleet file: digests by REPOSITORY:TAG; under `charts` those of the platform's charts by NAME:VERSION, and
of pages by their URL."""

_CHARTS = "charts"

_HEADER = (
    "# Digests of images by their tags, from `blueprint images pin`, and of charts by their versions, from\n"
    "# `blueprint platform install`. Keep this file under version control.\n"
)

_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
"""Kinds of manifests, those of several platforms first."""

_MAX_BYTES = 4 * 2**20
"""Largest manifest that registries take. Source: OCI distribution specification 1.1, "Pushing manifests"."""

_TIMEOUT_S = 30
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DOCKER_HUB_API = "registry-1.docker.io"


def list_unpinned() -> list[str]:
    """Return the catalog's images without a digest."""
    return [reference for reference, row in images.load().items() if row.digest is None]


def locate(fleet_file: Path) -> Path:
    return fleet_file.resolve().parent / FILE


def read(fleet_file: Path) -> dict[str, str]:
    """Return the images' digests beside a fleet file; none without the lock file.

    Raises:
        InputError: it is not a mapping of images to digests.
    """
    return _read_pins(fleet_file)[0]


def read_charts(fleet_file: Path) -> dict[str, str]:
    """Return the charts' digests beside a fleet file, by NAME:VERSION; none without the lock file.

    Raises:
        InputError: as `read`.
    """
    return _read_pins(fleet_file)[1]


def write(fleet_file: Path, digests: Mapping[str, str], charts: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Add digests to the lock file: of images, and of charts by NAME:VERSION."""
    path = locate(fleet_file)
    with processes.lock_file(path):  # two builds may end at once
        old_digests, old_charts = _read_pins(fleet_file)
        rows: dict[str, Any] = {**old_digests, **digests}
        if all_charts := {**old_charts, **charts}:
            rows[_CHARTS] = all_charts
        path.write_text(_HEADER + yaml.safe_dump(rows, sort_keys=True, width=200), encoding="utf-8")
    return path


def _read_pins(fleet_file: Path) -> tuple[dict[str, str], dict[str, str]]:
    path = locate(fleet_file)
    if not path.is_file():
        return {}, {}
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError):  # the latter where it is no text in UTF-8, or has no such date
        rows = None
    charts = rows.pop(_CHARTS, {}) if isinstance(rows, dict) else {}
    if not isinstance(rows, dict) or not all(map(_is_digest, rows.values())):
        raise InputError(f"{path}: it does not map images to digests. Fix: delete it and run `blueprint images pin`.")
    if not isinstance(charts, dict) or not all(map(_is_digest, charts.values())):
        raise InputError(f"{path}: {_CHARTS}: it does not map charts to digests. Fix: delete that key.")
    return rows, charts


def _is_digest(value: Any) -> bool:
    return bool(re.fullmatch("sha256:[0-9a-f]{64}", str(value)))


def fetch_digest(reference: str) -> str:
    """Ask an image's registry for the digest of its tag, without a login.

    Args:
        reference: REPOSITORY:TAG, with the registry's host unless it is Docker Hub's.

    Raises:
        InputError: it has no tag, or the registry no such image.
        Unavailable: the registry does not answer, asks for a login, or answers with something else.
    """
    repository, separator, tag = reference.rpartition(":")
    if "@" in reference or not separator or "/" in tag:
        raise InputError(f"{reference}: it is not an image with a tag. Fix: write REPOSITORY:TAG.")
    host, name = image_cache.split_host(repository)
    address = _DOCKER_HUB_API if host == image_cache.DOCKER_HUB else host
    url = f"{_select_scheme(address)}://{address}/v2/{name}/manifests/{urllib.parse.quote(tag)}"
    try:
        body, headers = _get_manifest(reference, url, name)
    except (OSError, ValueError) as error:
        raise _translate_error(reference, error) from None
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if headers.get("Docker-Content-Digest", digest) != digest:
        raise Unavailable(f"{reference}: the manifest from {host} does not match its digest. Fix: try again.")
    return digest


def _get_manifest(reference: str, url: str, name: str) -> tuple[bytes, Message]:
    headers = {"Accept": _MANIFESTS}
    try:
        return _get_answer(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        challenge = error.headers.get("WWW-Authenticate", "")
    return _get_answer(url, {**headers, "Authorization": f"Bearer {_fetch_token(reference, challenge, name)}"})


def _fetch_token(reference: str, challenge: str, name: str) -> str:
    fields = dict(_CHALLENGE.findall(challenge))
    realm = urllib.parse.urlsplit(fields.get("realm", ""))
    if not challenge.startswith("Bearer ") or realm.scheme != _select_scheme(realm.netloc):
        raise Unavailable(f"{reference}: its registry asks for a login. Fix: name the image with its digest.")
    query = {"service": fields.get("service", ""), "scope": fields.get("scope", f"repository:{name}:pull")}
    body, _ = _get_answer(f"{realm.geturl()}?{urllib.parse.urlencode(query)}", {})
    answer = untrusted_json.parse(body)
    return str(answer.get("token") or answer.get("access_token"))


def _get_answer(url: str, headers: Mapping[str, str]) -> tuple[bytes, Message]:
    request = urllib.request.Request(url, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        body = response.read(_MAX_BYTES + 1)
        if len(body) > _MAX_BYTES:
            raise ValueError("the manifest is too long")
        return body, response.headers


def _select_scheme(address: str) -> str:
    """https, but http on this machine, where no registry has a certificate."""
    return "http" if is_loopback(address) else "https"


def _translate_error(reference: str, error: Exception) -> InputError | Unavailable:
    if isinstance(error, urllib.error.HTTPError) and error.code == 404:
        return InputError(f"{reference}: its registry has no such image. Fix: name an existing tag.")
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        return Unavailable(f"{reference}: its registry asks for a login. Fix: name the image with its digest.")
    cause = error.reason if type(error) is urllib.error.URLError else error
    reason = str(cause).splitlines()[0] if str(cause) else type(error).__name__
    return Unavailable(f"{reference}: its registry does not answer ({reason}). Fix: check the network.")
