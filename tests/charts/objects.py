"""Holds rendered objects against Kubernetes' own schemas and those of the custom kinds, by kubeconform, strictly.

Kubernetes' schemas are those of its release: api/openapi-spec/swagger.json in the Go module k8s.io/kubernetes. Both kinds
are written to a folder as kubeconform wants them, a file a kind; a key that a schema does not know is refused.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from llm_serving import go_programs
from llm_serving.settings.errors import Unavailable

VERSION = "v1.35.4"
"""Of the fleet's default: EKS 1.35."""

CRDS = Path(__file__).with_name("crds")
_NAME = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""In kubeconform's words: the suffix is the group's first part, where there is a group, and the version."""

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def schemas(folder: Path) -> str:
    """Writes all schemas to `folder`; returns what kubeconform's -schema-location takes.

    Raises:
        Unavailable: there is no Go to fetch Kubernetes' module with.
    """
    definitions = json.loads(_swagger())["definitions"]
    own = {name: strict(definition) for name, definition in definitions.items()}
    # Which numbers and texts these take, their own code says, not their schemas.
    own["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer"]}
    own["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    own["io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"] = {"type": "object"}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            file = folder / _file(kind["group"], kind["kind"], kind["version"])
            _write(file, {"$ref": f"#/definitions/{name}"}, own)
    for group, kind, version, schema in _custom():
        schema["properties"] |= {"metadata": {"$ref": f"#/definitions/{_META}"}}
        schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        _write(folder / _file(group, kind, version), strict(schema), own)
    return str(folder / _NAME)


def _file(group: str, kind: str, version: str) -> str:
    return "-".join(filter(None, (kind.lower(), group.split(".")[0], f"{version}.json")))


def _write(file: Path, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
    """The schema with the definitions that it refers to."""
    needed: dict[str, Any] = {}
    wanted = list(_references(schema))
    while wanted:
        name = wanted.pop()
        if name not in needed:
            needed[name] = definitions[name]
            wanted += _references(definitions[name])
    file.write_text(json.dumps({**schema, "definitions": needed}))


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix("#/definitions/")
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def strict(schema: Any) -> Any:
    """The schema, refusing keys that it does not name; numbers or texts where it says so in Kubernetes' own way."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    properties = schema.get("properties")
    known = isinstance(properties, dict) and schema.get("type", "object") == "object"
    if known and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def _swagger() -> bytes:
    if not shutil.which("go"):
        raise Unavailable("Go is not on PATH, by which Kubernetes' schemas are fetched")
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd="/")
    if said.returncode:
        raise Unavailable(f"{' '.join(command)}: {said.stderr or said.stdout}")
    with zipfile.ZipFile(json.loads(said.stdout)["Zip"]) as module:
        return module.read(f"k8s.io/kubernetes@{VERSION}/api/openapi-spec/swagger.json")


def _custom() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Group, kind, version and schema of each custom kind."""
    for file in sorted(CRDS.glob("*.yaml")):
        spec = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            yield spec["group"], spec["names"]["kind"], version["name"], version["schema"]["openAPIV3Schema"]


def pods(made: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All pod templates of a release: a Deployment's one, a LeaderWorkerSet's leader and worker."""
    found: list[dict[str, Any]] = []
    for one in made:
        if one["kind"] == "Deployment":
            found.append(one["spec"]["template"])
        if one["kind"] == "LeaderWorkerSet":
            group = one["spec"]["leaderWorkerTemplate"]
            found += [group["leaderTemplate"], group["workerTemplate"]]
    return found


def mistakes(manifests: str, location: str) -> list[str]:
    """What kubeconform says against the objects, a line each; empty where all are valid.

    Raises:
        AssertionError: it passed over an object, or looked at none.
    """
    program = go_programs.path_of(go_programs.KUBECONFORM)
    # Our schemas refuse unknown keys themselves; its own -strict refuses a key that stands there twice.
    command = [program, "-strict", "-output", "json", "-summary", "-schema-location", location]
    run = subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=120, check=False)
    said = json.loads(run.stdout)
    summary = said["summary"]
    assert summary["skipped"] == 0, said
    assert sum(summary.values()) == len([one for one in yaml.load_all(manifests, yaml.CSafeLoader) if one]) > 0, summary
    return [f"{one['kind']} {one['name']}: {one['msg']}" for one in said.get("resources") or []]
