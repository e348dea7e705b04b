"""Charts by digest: the real Helm, a Helm repository and an OCI registry on this machine, and a real control plane."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_serving.cli import main
from llm_serving.console import CommandFailed
from llm_serving.fleet import add_ons
from llm_serving.fleet.add_ons import AddOn
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons as installer
from llm_serving.operations import chart_archives, image_pins
from llm_serving.operations.kube_api import CRD, NAMESPACE, Kind
from llm_serving.settings.document import load
from llm_serving.settings.errors import CheckFailed, InputError, Unavailable
from tests import go_programs
from tests.control_plane.control_plane import ControlPlane
from tests.http_handler import QuietHandler
from tests.operations.conftest import SMALL_FLEET

OTHER_DIGEST = f"sha256:{'0' * 64}"
VERSION = "1.0.0"

pytestmark = pytest.mark.timeout(300, func_only=True)  # the fixtures may wait for a build


def compute_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def build_crd(fields: Sequence[str]) -> dict[str, Any]:
    """A kind Widget with these fields, all texts."""
    properties = {name: {"type": "string"} for name in fields}
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": "widgets.charts.test"},
        "spec": {"group": "charts.test", "names": names, "scope": "Cluster", "versions": versions},
    }


@dataclass
class Charts:
    """Packages charts of one ConfigMap each, and serves them as a Helm repository."""

    helm: str
    folder: Path
    url: str

    def publish(self, name: str, value: str = "first", crd_fields: Sequence[str] = ()) -> Path:
        """Package a chart, put it into the repository, and return its archive; what had its name is replaced.

        Args:
            crd_fields: of a kind that a chart below it brings along; none where empty.
        """
        chart = self.folder.parent / "sources" / name
        (chart / "templates").mkdir(parents=True, exist_ok=True)
        if crd_fields:
            (below := chart / "charts" / "kinds" / "crds").mkdir(parents=True, exist_ok=True)
            (below.parent / "Chart.yaml").write_text(f"apiVersion: v2\nname: kinds\nversion: {VERSION}\n")
            (below / "widgets.yaml").write_text(yaml.safe_dump(build_crd(crd_fields)))
        (chart / "Chart.yaml").write_text(f"apiVersion: v2\nname: {name}\nversion: {VERSION}\n")
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}
        (chart / "templates" / "map.yaml").write_text(yaml.safe_dump(manifest))
        self._run("package", str(chart), "--destination", str(self.folder))
        self._run("repo", "index", str(self.folder), "--url", self.url)
        return self.folder / f"{name}-{VERSION}.tgz"

    def _run(self, *words: str) -> None:
        subprocess.run([self.helm, *words], check=True, capture_output=True, timeout=240)


@dataclass
class Registry:
    """Speaks as much of the OCI distribution protocol as `helm pull` asks for."""

    content: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Media type and content by path."""

    def put(self, repository: str, archive: Path) -> str:
        """Tag a chart's archive with its version, and return its manifest's digest."""
        blob, settings = archive.read_bytes(), json.dumps({"name": "tiny", "version": VERSION}).encode()
        rows: list[dict[str, Any]] = []
        for media_type, content in (
            ("application/vnd.cncf.helm.config.v1+json", settings),
            ("application/vnd.cncf.helm.chart.content.v1.tar+gzip", blob),
        ):
            rows.append({"mediaType": media_type, "digest": compute_digest(content), "size": len(content)})
            self.content[f"/v2/{repository}/blobs/{compute_digest(content)}"] = (media_type, content)
        media_type = "application/vnd.oci.image.manifest.v1+json"
        document = {"schemaVersion": 2, "mediaType": media_type, "config": rows[0], "layers": rows[1:]}
        manifest = json.dumps(document).encode()
        for name in (VERSION, compute_digest(manifest)):
            self.content[f"/v2/{repository}/manifests/{name}"] = (media_type, manifest)
        return compute_digest(manifest)


def serve(handler: Any) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Helm, first on PATH, away from the user's own settings."""
    try:
        program = go_programs.find_or_build(go_programs.HELM)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"HELM_{kind}_HOME", str(tmp_path / "helm"))
    monkeypatch.setenv("PATH", str(Path(program).parent), prepend=":")
    return program


@pytest.fixture
def charts(helm: str, tmp_path: Path) -> Iterator[Charts]:
    """An empty Helm repository."""
    folder = tmp_path / "repository"
    folder.mkdir()
    for port in serve(functools.partial(QuietFiles, directory=str(folder))):
        yield Charts(helm, folder, f"http://127.0.0.1:{port}")


@pytest.fixture
def registry() -> Iterator[tuple[Registry, str]]:
    """An empty OCI registry, and its address."""
    content = Registry()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            media_type, body = content.content.get(self.path, ("text/plain", b""))
            self.send_response(200 if self.path == "/v2/" or body else 404)
            headers = {"Content-Type": media_type, "Docker-Content-Digest": compute_digest(body)}
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

    for port in serve(Handler):
        yield content, f"127.0.0.1:{port}"


def build_row(name: str, digest: str | None, *, repository: str | None = None, chart: str | None = None) -> AddOn:
    """A row of the table."""
    return AddOn(
        name=name,
        why="a test",
        when="always",
        chart=chart or name,
        repository=repository,
        version=VERSION,
        digest=digest,
        source="this test",
        namespace=f"charts-{name}",
    )


def fetch(row: AddOn, tmp_path: Path) -> tuple[str, Path]:
    """Pull and check a row's chart; its digest and its archive."""
    archive = chart_archives.plan(row, tmp_path / "pulled", tmp_path / "fleet.yaml")
    if archive.is_oci:  # no registry of this machine has a certificate
        archive = dataclasses.replace(archive, pull=[*archive.pull, "--plain-http"])
    return chart_archives.fetch(archive, tmp_path / "log"), archive.file


def test_a_repository_s_chart_is_pulled_if_its_archive_has_the_digest(charts: Charts, tmp_path: Path) -> None:
    published = charts.publish("tiny")
    digest = compute_digest(published.read_bytes())
    index = yaml.safe_load((charts.folder / "index.yaml").read_text())
    assert f"sha256:{index['entries']['tiny'][0]['digest']}" == digest, "what the table takes from an index"
    fetched, file = fetch(build_row("tiny", digest, repository=charts.url), tmp_path)
    assert (fetched, file.read_bytes()) == (digest, published.read_bytes())


def test_a_changed_archive_is_refused_even_if_its_index_was_changed_with_it(charts: Charts, tmp_path: Path) -> None:
    digest = compute_digest(charts.publish("tiny").read_bytes())
    row = build_row("tiny", digest, repository=charts.url)
    assert fetch(row, tmp_path)[0] == digest
    changed = compute_digest(charts.publish("tiny", "changed").read_bytes())
    with pytest.raises(CheckFailed) as refusal:
        fetch(row, tmp_path)
    message = str(refusal.value)
    assert f"tiny:{VERSION}: its archive has the digest {changed}, not {digest} as" in message
    assert "charts/platform.yaml says" in message and "Fix: " in message
    assert not list((tmp_path / "pulled").iterdir()), "nothing to install by accident"


def test_a_registry_s_chart_is_pulled_if_its_manifest_has_the_digest(
    charts: Charts, registry: tuple[Registry, str], tmp_path: Path
) -> None:
    content, address = registry
    published = charts.publish("tiny")
    digest = content.put("charts/tiny", published)
    row = build_row("renamed", digest, chart=f"oci://{address}/charts/tiny")
    fetched, file = fetch(row, tmp_path)
    assert (fetched, file.read_bytes()) == (digest, published.read_bytes())
    moved = content.put("charts/tiny", charts.publish("tiny", "changed"))
    with pytest.raises(CheckFailed, match=f"renamed:{VERSION}: its archive has the digest {moved}, not {digest} as"):
        fetch(row, tmp_path)


def test_helm_holds_the_archive_against_the_digest_that_it_prints(
    charts: Charts, registry: tuple[Registry, str], tmp_path: Path
) -> None:
    content, address = registry
    digest = content.put("charts/tiny", charts.publish("tiny"))
    [layer] = [path for path, (kind, _) in content.content.items() if "content" in kind]
    kind, original = content.content[layer]
    content.content[layer] = (kind, bytes(reversed(original)))
    with pytest.raises(CommandFailed, match="mismatch"):
        fetch(build_row("tiny", digest, chart=f"oci://{address}/charts/tiny"), tmp_path)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A page, and its URL."""
    page = tmp_path / "pages" / "v1" / "install.yaml"
    page.parent.mkdir(parents=True)
    page.write_text("kind: first\n")
    for port in serve(functools.partial(QuietFiles, directory=str(page.parents[1]))):
        yield page, f"http://127.0.0.1:{port}/v1/install.yaml"


def build_page_row(url: str, digest: str | None = None) -> AddOn:
    return AddOn(name="page", why="a test", when="always", manifest=url, digest=digest)


def test_a_page_is_taken_if_it_has_the_digest_of_the_table_or_of_the_first_time(
    pages: tuple[Path, str], tmp_path: Path
) -> None:
    page, url = pages
    digest = compute_digest(page.read_bytes())
    for row in (build_page_row(url), build_page_row(url, digest)):
        fetched, file = fetch(row, tmp_path)
        assert (fetched, file.name, file.read_bytes()) == (digest, "page-v1-install.yaml", page.read_bytes())
    image_pins.write(tmp_path / "fleet.yaml", {}, charts={url: digest})
    page.write_text("kind: changed\n")
    changed = compute_digest(page.read_bytes())
    for row, place in ((build_page_row(url), "images.lock.yaml"), (build_page_row(url, digest), "platform.yaml")):
        with pytest.raises(
            CheckFailed, match=f"{url}: its content has the digest {changed}, not {digest} as .*{place}"
        ):
            fetch(row, tmp_path)
        assert not list((tmp_path / "pulled").iterdir()), "nothing to apply by accident"
    page.unlink()
    with pytest.raises(Unavailable, match=f"{url} cannot be downloaded: HTTP Error 404: File not found. Fix: "):
        fetch(row, tmp_path)


def test_a_page_that_changed_stops_installation_and_removal_before_the_cluster_is_asked(
    pages: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = pages
    (tmp_path / "fleet.yaml").write_text(SMALL_FLEET)
    fleet = load(tmp_path / "fleet.yaml", Fleet).value
    monkeypatch.setattr(add_ons, "load_add_ons", lambda: (build_page_row(url, OTHER_DIGEST),))
    monkeypatch.setattr(installer, "require_tools", lambda: None)
    monkeypatch.setattr(installer.kube_api, "open_api", lambda _: pytest.fail("the cluster is asked"))
    [applied] = installer.build_install_commands(fleet, tmp_path, tmp_path / "fleet.yaml")
    [deleted] = installer.build_remove_commands(fleet, tmp_path, tmp_path / "fleet.yaml")
    assert applied.arguments[-1] == deleted.arguments[-1] == str(tmp_path / "charts" / "page-v1-install.yaml")
    with pytest.raises(CheckFailed, match="No chart was installed"):
        installer.install([applied], tmp_path, tmp_path / "fleet.yaml")
    with pytest.raises(CheckFailed):
        installer.remove([deleted], tmp_path)


def test_an_archive_of_an_earlier_run_is_not_taken(charts: Charts, tmp_path: Path) -> None:
    row = build_row("tiny", None, repository=charts.url)
    charts.publish("tiny")
    fetch(row, tmp_path)
    shutil.rmtree(charts.folder)
    with pytest.raises(CommandFailed, match="helm pull tiny"):
        fetch(row, tmp_path)
    assert not list((tmp_path / "pulled").iterdir())


def test_the_table_s_digest_comes_before_the_lock_file_s_and_that_is_of_one_version(tmp_path: Path) -> None:
    fleet_file, locked = tmp_path / "fleet.yaml", f"sha256:{'1' * 64}"
    image_pins.write(fleet_file, {"quay.io/other:1": OTHER_DIGEST})
    image_pins.write(fleet_file, {}, charts={f"tiny:{VERSION}": locked})
    assert image_pins.read(fleet_file) == {"quay.io/other:1": OTHER_DIGEST}, "charts are no images"
    image_pins.write(fleet_file, {"quay.io/more:1": OTHER_DIGEST})
    row = build_row("tiny", None, repository="http://127.0.0.1:9")
    assert chart_archives.plan(row, tmp_path, fleet_file).digest == locked
    newer = row.model_copy(update={"version": "1.0.1"})
    assert chart_archives.plan(newer, tmp_path, fleet_file).digest is None
    pinned = row.model_copy(update={"digest": OTHER_DIGEST})
    assert chart_archives.plan(pinned, tmp_path, fleet_file).digest == OTHER_DIGEST


@pytest.mark.parametrize("charts_key", ["[]", "{tiny: sha256:short}"])
def test_a_damaged_lock_of_charts_is_refused(tmp_path: Path, charts_key: str) -> None:
    (tmp_path / image_pins.FILE).write_text(f"charts: {charts_key}\n")
    with pytest.raises(InputError, match="charts: it does not map charts to digests"):
        image_pins.read_charts(tmp_path / "fleet.yaml")


class Platform:
    """`blueprint platform install` of a table of charts on the control plane."""

    def __init__(self, control_plane: ControlPlane, charts: Charts, folder: Path) -> None:
        self.control_plane, self.charts, self.folder = control_plane, charts, folder
        (folder / "fleet.yaml").write_text(SMALL_FLEET)

    def install(self, monkeypatch: pytest.MonkeyPatch, *rows: AddOn, options: tuple[str, ...] = ()) -> int:
        monkeypatch.setattr(add_ons, "load_add_ons", lambda: rows)
        return main.run(["platform", "install", "--fleet", str(self.folder / "fleet.yaml"), *options])

    def read_value(self, name: str) -> str:
        """The installed chart's value; "" if it is not installed."""
        manifest = self.control_plane.api.find(Kind("v1", "ConfigMap"), name, f"charts-{name}")
        return str(manifest["data"]["value"]) if manifest else ""


@pytest.fixture
def platform(
    control_plane: ControlPlane, charts: Charts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Platform]:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name, value in control_plane.environment.items():
        monkeypatch.setenv(name, value)
    yield Platform(control_plane, charts, folder)
    for name in ("alpha", "omega", "tiny", "widgets"):
        control_plane.api.delete(NAMESPACE, f"charts-{name}")


def test_a_changed_chart_stops_the_installation_of_all(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        build_row(name, compute_digest(platform.charts.publish(name).read_bytes()), repository=platform.charts.url)
        for name in ("alpha", "omega")
    ]
    changed = compute_digest(platform.charts.publish("omega", "changed").read_bytes())
    assert platform.install(monkeypatch, *rows) == 1
    error = capsys.readouterr().err
    assert f"omega:{VERSION}: its archive has the digest {changed}, not {rows[1].digest}" in error
    assert "No chart was installed" in error
    assert platform.read_value("alpha") == platform.read_value("omega") == ""

    accepted = rows[1].model_copy(update={"digest": changed})
    assert platform.install(monkeypatch, rows[0], accepted) == 0
    assert (platform.read_value("alpha"), platform.read_value("omega")) == ("first", "changed")
    assert not (platform.folder / image_pins.FILE).exists(), "the table has them"


def test_a_chart_without_a_digest_is_installed_by_its_first_digest_ever_after(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = build_row("tiny", None, repository=platform.charts.url)
    first = compute_digest(platform.charts.publish("tiny").read_bytes())
    assert platform.install(monkeypatch, row, options=("--plan",)) == 0
    note = "pinned by version alone: its first digest goes to images.lock.yaml"
    assert note in capsys.readouterr().out
    assert not (platform.folder / image_pins.FILE).exists(), "a plan writes none"
    assert platform.install(monkeypatch, row) == 0
    assert note in capsys.readouterr().err
    assert image_pins.read_charts(platform.folder / "fleet.yaml") == {f"tiny:{VERSION}": first}

    assert platform.install(monkeypatch, row, options=("--plan", "--json")) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert shown["digest"] == first
    assert shown["pull"][:3] == ["helm", "pull", "tiny"]
    assert shown["command"][:4] == ["helm", "upgrade", "--install", "tiny"]
    changed = compute_digest(platform.charts.publish("tiny", "changed").read_bytes())
    assert platform.install(monkeypatch, row) == 1
    assert f"the digest {changed}, not {first} as images.lock.yaml says" in capsys.readouterr().err
    assert platform.read_value("tiny") == "first"


def test_an_upgrade_changes_a_chart_s_crds_which_helm_alone_would_not(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, row = platform.control_plane.api, build_row("widgets", None, repository=platform.charts.url)

    def install(value: str, *crd_fields: str) -> None:
        digest = compute_digest(platform.charts.publish("widgets", value, crd_fields).read_bytes())
        assert platform.install(monkeypatch, row.model_copy(update={"digest": digest})) == 0
        assert platform.read_value("widgets") == value

    def list_fields() -> set[str]:
        [version] = (api.find(CRD, "widgets.charts.test") or {})["spec"]["versions"]
        return set(version["schema"]["openAPIV3Schema"]["properties"])

    def keep_crds(*_: object) -> None:
        """Leave CRDs to Helm."""

    try:
        with monkeypatch.context() as by_helm_alone:
            by_helm_alone.setattr(installer, "_update_crds", keep_crds)
            install("first", "size")
            install("second", "size", "color")
            assert list_fields() == {"size"}
        install("third", "size", "color")
        assert list_fields() == {"size", "color"}
        install("fourth", "color")
        assert list_fields() == {"color"}
    finally:
        api.delete(CRD, "widgets.charts.test")
