"""Debian's packages of llama.cpp: found on the system's mirrors, checked, and unpacked without Debian's tools."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import tarfile
import urllib.error
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "images" / "llama-cpp" / "fetch_packages.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_packages", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CONTROL = b"Package: libz\nArchitecture: amd64\nVersion: 1.3\n"


def _pack(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return packed.getvalue()


def _build_package(files: dict[str, bytes], links: dict[str, str]) -> bytes:
    """A Debian package: an `ar` archive of three members."""
    control = _pack({"./control": CONTROL}, {})
    package = b"!<arch>\n"
    for name, content in {
        "debian-binary": b"2.0",
        "control.tar.xz": control,
        "data.tar.xz": _pack(files, links),
    }.items():
        package += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )
    return package


def test_libraries_and_the_program_lie_in_one_folder_and_nothing_else(script: ModuleType, tmp_path: Path) -> None:
    package = _build_package(
        {
            "./usr/bin/llama-server": b"program",
            "./usr/bin/llama-cli": b"other",
            "./usr/share/bash-completion/completions/llama-server": b"completion",
            "./usr/lib/x86_64-linux-gnu/llama/libllama-server-impl.so": b"server",
            "./usr/lib/x86_64-linux-gnu/libz.so.1.3": b"zlib",
            "./usr/lib/x86_64-linux-gnu/ossl-modules/legacy.so": b"plugin",
            "./usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2": b"loader",
        },
        {
            "./usr/lib/x86_64-linux-gnu/libz.so.1": "libz.so.1.3",
            "./usr/lib64/ld-linux-x86-64.so.2": "../x/ld-linux-x86-64.so.2",
        },
    )
    library = tmp_path / "lib"
    library.mkdir()
    script.unpack(package, library)
    contents = {path.name: path.read_bytes() for path in library.iterdir()}
    assert contents == {
        "llama-server": b"program",
        "libllama-server-impl.so": b"server",
        "libz.so.1.3": b"zlib",
        "libz.so.1": b"zlib",
        "ld-linux-x86-64.so.2": b"loader",
    }
    script.record(package, tmp_path / script.RECORDS)
    assert (tmp_path / "var/lib/dpkg/status.d/libz").read_bytes() == CONTROL, "which an SBOM is made of"
    script.write_launcher(tmp_path)
    assert '"$folder/lib/ld-linux-x86-64.so.2" --library-path "$folder/lib"' in (tmp_path / "llama-server").read_text()


def test_mirrors_are_those_of_the_system_then_debians_own_and_its_archive(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEBIAN_MIRROR", raising=False)
    (tmp_path / "sources.list").write_text(
        "deb [trusted=no] http://one.example/debian bookworm main\n# deb http://no.example/debian x\n"
    )
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text("Types: deb\nURIs: https://two.example/debian/\n")
    (tmp_path / "sources.list.d" / "security.sources").write_text("URIs: http://one.example/debian-security\n")
    mirrors = script.list_mirrors(tmp_path)
    assert mirrors[:3] == ["http://one.example/debian", "https://two.example/debian", "https://deb.debian.org/debian"]
    assert mirrors[3].startswith("https://snapshot.debian.org/archive/debian/2026")
    monkeypatch.setenv("DEBIAN_MIRROR", "http://own.example/d/")
    assert script.list_mirrors(tmp_path)[0] == "http://own.example/d"


def test_a_mirror_that_fails_or_serves_something_else_is_passed_over(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = {"http://b/pool/x+1.deb": b"damaged", "http://c/pool/x+1.deb": b"package"}

    def download(url: str, _: int) -> bytes:
        if url.replace("%2B", "+") not in served:
            raise urllib.error.URLError("no route")
        return served[url.replace("%2B", "+")]

    monkeypatch.setattr(script, "_download", download)
    package = script.Package("pool/x+1.deb", 7, hashlib.sha256(b"package").hexdigest())
    assert script.fetch(package, ["http://a", "http://b", "http://c"]) == b"package"
    with pytest.raises(script.FetchError) as error:
        script.fetch(package, ["http://a", "http://b"])
    assert str(error.value) == (
        "no mirror of Debian serves pool/x+1.deb (http://a: no route; http://b: another content, 7 bytes). "
        "Fix: set DEBIAN_MIRROR to the URL of one that does"
    )


def test_both_architectures_have_the_same_pinned_packages(script: ModuleType) -> None:
    names = {
        machine: [Path(row.file).name.split("_")[:2] for row in script.list_packages(machine)]
        for machine in ("x86_64", "aarch64")
    }
    assert names["x86_64"] == names["aarch64"]
    with pytest.raises(script.FetchError, match="has packages for x86_64 and aarch64, and this machine is riscv64"):
        script.list_packages("riscv64")
