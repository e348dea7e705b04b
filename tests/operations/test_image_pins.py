"""Digests of images from a registry on this machine that speaks the distribution protocol, with tokens."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from llm_serving.catalog import images
from llm_serving.cli import main
from llm_serving.operations import image_pins
from llm_serving.settings.errors import InputError, Unavailable
from tests.http_handler import QuietHandler

MANIFEST = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json"}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class Registry(QuietHandler):
    """Has vllm/vllm-openai:v1 for those with a token, damaged:1, and private:1 for nobody."""

    def do_GET(self) -> None:
        if self.path.startswith("/token?"):
            assert "scope=repository%3A" in self.path
            self.respond(200, json.dumps({"token": "pass"}).encode())
        elif self.path.startswith("/v2/private/"):
            self.respond(401, b"", {"WWW-Authenticate": "Basic"})
        elif self.headers.get("Authorization") != "Bearer pass":
            realm = f"http://{self.headers['Host']}/token"
            self.respond(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}",service="registry"'})
        elif self.path == "/v2/vllm/vllm-openai/manifests/v1":
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self.respond(200, MANIFEST, {"Docker-Content-Digest": DIGEST})
        elif self.path == "/v2/damaged/manifests/1":
            self.respond(200, b"other", {"Docker-Content-Digest": DIGEST})
        else:
            self.respond(404)


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_digest_is_that_of_the_manifest_that_the_registry_serves(registry: str) -> None:
    assert image_pins.fetch_digest(f"{registry}/vllm/vllm-openai:v1") == DIGEST


def test_what_a_registry_refuses_is_said(registry: str) -> None:
    with pytest.raises(InputError, match="its registry has no such image"):
        image_pins.fetch_digest(f"{registry}/vllm/vllm-openai:v2")
    with pytest.raises(Unavailable, match="asks for a login"):
        image_pins.fetch_digest(f"{registry}/private:1")
    with pytest.raises(Unavailable, match="does not match its digest"):
        image_pins.fetch_digest(f"{registry}/damaged:1")
    with pytest.raises(Unavailable, match=r"does not answer \(\[Errno 111\] Connection refused\)"):
        image_pins.fetch_digest("127.0.0.1:9/a:1")


@pytest.mark.parametrize("reference", ["vllm/vllm-openai", f"vllm/vllm-openai:v1@{DIGEST}", "localhost:5000/a"])
def test_an_image_without_a_tag_alone_is_refused(reference: str) -> None:
    with pytest.raises(InputError, match="it is not an image with a tag"):
        image_pins.fetch_digest(reference)


def test_pins_lie_beside_the_fleet_file_and_are_pulled_by(
    registry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet, reference = tmp_path / "fleet.yaml", f"{registry}/vllm/vllm-openai:v1"
    image_pins.write(fleet, {"quay.io/other:1": DIGEST})
    assert main.run(["images", "pin", reference, "--fleet", str(fleet), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digests"] == {reference: DIGEST}
    digests = image_pins.read(fleet)
    assert digests == {reference: DIGEST, "quay.io/other:1": DIGEST}
    assert images.pin(reference, digests) == f"{reference}@{DIGEST}"
    assert images.pin("quay.io/unknown:1", digests) == "quay.io/unknown:1"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])  # the latter as PowerShell writes files
def test_a_damaged_lock_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / image_pins.FILE).write_text("vllm/vllm-openai:v1: sha256:short\n", encoding)
    with pytest.raises(InputError, match="it does not map images to digests"):
        image_pins.read(tmp_path / "fleet.yaml")


def test_the_catalog_s_images_without_a_digest_are_the_ones_to_pin() -> None:
    assert "vllm/vllm-openai:v0.32.0" in image_pins.list_unpinned()
    assert all(images.load()[reference].digest is None for reference in image_pins.list_unpinned())
