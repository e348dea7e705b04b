"""Hold the packages of images/llama-cpp against Debian's signed index.

    python -m scripts.verify_debian_packages [MIRROR]

Debian's keys sign InRelease, InRelease has the hash of each architecture's Packages.xz, and that has the size and hash
of each package: so packages.json names what Debian built, whatever served it here. Needs gpgv and
debian-archive-keyring. A mirror's index lists the newest version of a package only: one that is not in it any more is
named, and is no mistake.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from llm_serving import paths

PACKAGES = paths.IMAGES / "llama-cpp" / "packages.json"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = "http://deb.debian.org/debian"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's name of each processor, as `uname -m` calls it."""

_SUITE = "sid"
_TIMEOUT_S = 60.0


class NotDebians(Exception):
    """A file is not what Debian's keys vouch for."""


def main(mirror: str = MIRROR, packages: Path = PACKAGES, keyring: Path = KEYRING) -> list[str]:
    """Return a line for each processor: how many packages the index vouches for, and which it lists no more.

    Raises:
        NotDebians: the signature, an index or a package differs.
    """
    release = verify_signature(_fetch(f"{mirror}/dists/{_SUITE}/InRelease"), keyring)
    date = re.findall(r"(?m)^Date: (.+)$", release)[0]
    lines = []
    for machine, rows in json.loads(packages.read_text(encoding="utf-8"))["packages"].items():
        index = _fetch_index(mirror, release, f"main/binary-{ARCHITECTURES[machine]}/Packages.xz")
        replaced = [row["file"] for row in rows if not _check_package(row, index)]
        lines.append(f"{machine}: {len(rows) - len(replaced)} of {len(rows)} packages are in the index of {date}")
        lines += [f"  replaced since: {file}" for file in replaced]
    return lines


def verify_signature(signed: bytes, keyring: Path) -> str:
    """Return the text that the keys of the keyring have signed, and nothing around it."""
    command = ["gpgv", "--quiet", "--keyring", str(keyring), "--output", "-", "-"]
    result = subprocess.run(command, input=signed, capture_output=True, check=False, timeout=_TIMEOUT_S)
    if result.returncode:
        *_, reason = re.findall("(?m)^gpgv: .+", result.stderr.decode(errors="replace"))
        raise NotDebians(f"InRelease: {reason.rstrip('.')}. Fix: use another mirror, or install debian-archive-keyring")
    return result.stdout.decode()


def _fetch_index(mirror: str, release: str, name: str) -> dict[str, tuple[int, str]]:
    """Return size and SHA-256 by file of an index that a release vouches for."""
    content = _fetch(f"{mirror}/dists/{_SUITE}/{name}")
    _, _, hashes = release.partition("\nSHA256:\n")
    if f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}" not in re.sub(" +", " ", hashes).splitlines():
        raise NotDebians(f"{name}: it is not the file that InRelease names. Fix: try again, the mirror may be changing")
    stanzas = lzma.decompress(content).decode().split("\n\n")
    rows = (dict(re.findall(r"(?m)^(Filename|Size|SHA256): (.+)$", stanza)) for stanza in stanzas)
    return {row["Filename"]: (int(row["Size"]), row["SHA256"]) for row in rows if row}


def _check_package(row: dict[str, Any], index: dict[str, tuple[int, str]]) -> bool:
    index_row = index.get(row["file"])
    if index_row and index_row != (row["bytes"], row["sha256"]):
        raise NotDebians(f"{row['file']}: Debian's has {index_row[0]} bytes and SHA-256 {index_row[1]}. Fix: pin that")
    return index_row is not None


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        return bytes(response.read())


if __name__ == "__main__":
    try:
        print("\n".join(main(sys.argv[1] if len(sys.argv) > 1 else MIRROR)))
    except (NotDebians, OSError) as error:
        sys.exit(str(error))
