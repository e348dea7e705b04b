"""Holds rendered objects against Kubernetes' own schemas and those of the custom kinds, by kubeconform, strictly.

Kubernetes' schemas are those of its release: api/openapi-spec/swagger.json in the Go module k8s.io/kubernetes. Both kinds
are written to a folder as kubeconform wants them, a file a kind; a key that a schema does not know is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llm_serving.settings.errors import Unavailable
from tests import go_programs

VERSION = "v1.35.4"
"""Of the fleet's default: EKS 1.35."""

CRDS = Path(__file__).with_name("crds")

NO_COLLECTION = {"GOGC": "off"}
"""For programs in Go that end within a second: a quarter of their CPU would go into collecting garbage."""

_NAME = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""In kubeconform's words: the suffix is the group's first part, where there is a group, and the version."""

_NAMED_TEMPLATE = "podTemplate: PodTemplateSpec"
"""In a definition of ours, in place of the same schema again."""

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def format_location(folder: Path) -> str:
    """Returns what kubeconform's -schema-location takes for a folder of schemas."""
    return str(folder / _NAME)


def write_schemas(folder: Path) -> None:
    """Writes all schemas to `folder`.

    Raises:
        Unavailable: there is no Go to fetch Kubernetes' module with.
    """
    definitions = json.loads(_build_swagger())["definitions"]
    strict_definitions = {name: make_strict(definition) for name, definition in definitions.items()}
    # Which numbers and texts these take, their own code says, not their schemas.
    strict_definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"] = {"type": ["string", "integer"]}
    strict_definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {"type": ["string", "number"]}
    strict_definitions["io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1"] = {"type": "object"}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", []):
            file = folder / _format_filename(kind["group"], kind["kind"], kind["version"])
            _write_schema(file, {"$ref": f"#/definitions/{name}"}, strict_definitions)
    for group, kind, version, schema in _find_custom_kinds():
        schema["properties"] |= {"metadata": {"$ref": f"#/definitions/{_META}"}}
        schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
        _write_schema(folder / _format_filename(group, kind, version), make_strict(schema), strict_definitions)


def _format_filename(group: str, kind: str, version: str) -> str:
    return "-".join(filter(None, (kind.lower(), group.split(".")[0], f"{version}.json")))


def _write_schema(file: Path, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> None:
    """The schema with the definitions that it refers to."""
    needed: dict[str, Any] = {}
    pending = list(_find_references(schema))
    while pending:
        name = pending.pop()
        if name not in needed:
            needed[name] = definitions[name]
            pending += _find_references(definitions[name])
    file.write_text(json.dumps({**schema, "definitions": needed}))


def _find_references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"].removeprefix("#/definitions/")
        for value in schema.values():
            yield from _find_references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _find_references(value)


def make_strict(schema: Any) -> Any:
    """Return the schema with unknown keys refused and Kubernetes' int-or-string resolved."""
    if isinstance(schema, list):
        return [make_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict_schema = {key: make_strict(value) for key, value in schema.items() if key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["string", "integer"]}
    properties = schema.get("properties")
    is_object = isinstance(properties, dict) and schema.get("type", "object") == "object"
    if is_object and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict_schema.setdefault("additionalProperties", False)
    return strict_schema


def _build_swagger() -> bytes:
    if not shutil.which("go"):
        raise Unavailable("Go is not on PATH, by which Kubernetes' schemas are fetched")
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd="/")
    if result.returncode:
        raise Unavailable(f"{' '.join(command)}: {result.stderr or result.stdout}")
    with zipfile.ZipFile(json.loads(result.stdout)["Zip"]) as module:
        return module.read(f"k8s.io/kubernetes@{VERSION}/api/openapi-spec/swagger.json")


def read_definitions(folder: Path) -> Iterator[dict[str, Any]]:
    """The custom resource definitions of a folder, with Kubernetes' schema of a pod's template where it is named alone."""
    for file in sorted(item for item in folder.iterdir() if item.suffix in (".yaml", ".yml", ".json")):
        text = file.read_text()
        if _NAMED_TEMPLATE in text:
            text = text.replace(_NAMED_TEMPLATE, f"podTemplate: {json.dumps(_read_pod_template())}")
        yield from filter(None, yaml.load_all(text, yaml.CSafeLoader))


def _read_pod_template() -> Any:
    """As LeaderWorkerSet has it for the leaders of its groups."""
    spec = yaml.load((CRDS / "leaderworkersets.yaml").read_text(), yaml.CSafeLoader)["spec"]
    properties = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return properties["spec"]["properties"]["leaderWorkerTemplate"]["properties"]["leaderTemplate"]


def _find_custom_kinds() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Group, kind, version and schema of each custom kind."""
    for definition in read_definitions(CRDS):
        spec = definition["spec"]
        for version in spec["versions"]:
            yield spec["group"], spec["names"]["kind"], version["name"], version["schema"]["openAPIV3Schema"]


def list_pods(manifests: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All pod templates of a release: a Deployment's one, a LeaderWorkerSet's leader and worker, those of operators' kinds."""
    templates: list[dict[str, Any]] = []
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            templates.append(manifest["spec"]["template"])
        if manifest["kind"] == "LeaderWorkerSet":
            group = manifest["spec"]["leaderWorkerTemplate"]
            templates += [group["leaderTemplate"], group["workerTemplate"]]
        if manifest["kind"] == "RayService":
            cluster = manifest["spec"]["rayClusterConfig"]
            templates += [group["template"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
        if manifest["kind"] == "DynamoGraphDeployment":
            templates += [component["podTemplate"] for component in manifest["spec"]["components"]]
    return templates


def validate(manifests: str, location: str) -> list[str]:
    """Return kubeconform's errors, one line each; empty if all objects are valid.

    Raises:
        AssertionError: kubeconform skipped an object or checked none.
    """
    count = len([item for item in yaml.load_all(manifests, yaml.CSafeLoader) if item])
    return [_format_error(item) for item in _find_invalid(location, count, text=manifests)]


def validate_each(manifests: Mapping[str, Sequence[Any]], location: str) -> dict[str, list[str]]:
    """Return the errors of several charts' objects by their names; one process reads each schema once.

    Raises:
        AssertionError: kubeconform skipped an object, or one of the charts has none.
    """
    assert all(manifests.values())
    errors: dict[str, list[str]] = {name: [] for name in manifests}
    with tempfile.TemporaryDirectory() as folder:
        for name, items in manifests.items():
            Path(folder, f"{name}.yaml").write_text(yaml.dump_all(items, Dumper=yaml.CSafeDumper))
        for item in _find_invalid(location, sum(map(len, manifests.values())), folder):
            errors[Path(item["filename"]).stem].append(_format_error(item))
    return errors


def _find_invalid(location: str, count: int, *words: str, text: str = "") -> list[dict[str, str]]:
    """Return what kubeconform refuses of a number of objects, in a text or in a folder."""
    program = go_programs.find_or_build(go_programs.KUBECONFORM)
    # Our schemas refuse unknown keys themselves; its -strict refuses a duplicate key.
    command = [program, "-strict", "-output", "json", "-summary", "-schema-location", location, *words]
    environment = {**os.environ, **NO_COLLECTION}
    run = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False, env=environment)
    response = json.loads(run.stdout)
    summary = response["summary"]
    assert summary["skipped"] == 0, response
    assert sum(summary.values()) == count > 0, summary
    return response.get("resources") or []


def _format_error(item: Mapping[str, str]) -> str:
    return f"{item['kind']} {item['name']}: {item['msg']}"
