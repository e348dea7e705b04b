"""The kind `diary`."""

# ruff: noqa: ARG002 - a kind takes what others need

from __future__ import annotations

import sys
from typing import Literal

from llm_serving.kinds.diary.server import Shelf

from llm_serving.catalog import own_image
from llm_serving.services.blueprint import BaseBlueprint, resolve_name
from llm_serving.services.deployment import Deployment
from llm_serving.services.kinds import Kind
from llm_serving.services.service import Probe, Replicas, Resources, Service, Stop
from llm_serving.services.slo import BaseSlo
from llm_serving.settings.plain import PlainData

PORT = 8080


class Diary(BaseBlueprint):
    """A user's diary."""

    kind: Literal["diary"] = "diary"
    words: str
    slo: BaseSlo = BaseSlo()


class DiaryStack(PlainData):
    """What its stack makes beside its services."""

    orchestrator: str
    queue: str


class DiaryDeployment(Deployment):
    """A resolved diary."""

    words: str


class DiaryKind(Kind):
    """Diaries."""

    NAME = "diary"
    SETTINGS = Diary
    DEPLOYMENT = DiaryDeployment
    VALIDATOR = "llm_serving.kinds.diary.validate"

    def list_port_names(self, blueprint):
        return ["reader"]

    def list_local_servers(self, blueprint):
        return (Shelf(),)

    def resolve(self, blueprint, fleet, environment):
        name, words = resolve_name(blueprint), blueprint.value.words
        port = environment.ports.get("reader", PORT)
        return DiaryDeployment(
            kind="diary",
            name=name,
            target=environment.target,
            fleet=fleet.value.name,
            environment=environment,
            words=words,
            stack=_build_stack(environment, f"{fleet.value.name}-{name}"),
            chart="" if environment.conventions.is_local else "batch",
            url=environment.conventions.url.format(deployment=name, namespace=environment.namespace, port=port),
            services=(_build_writer(environment, words), _build_reader(environment, port)),
        )

    def describe(self, blueprint, deployment):
        return [("words", deployment.words)]


def _build_stack(environment, queue):
    orchestrator = environment.conventions.orchestrator
    return DiaryStack(orchestrator=orchestrator, queue=queue) if orchestrator else None


def _build_writer(environment, words):
    command = ("write", words)
    if environment.conventions.is_local:
        command = (
            "sh",
            "-c",
            f"echo {words}; echo {words} > {environment.data_folder}/shelf/words.txt; exec sleep 600",
        )
    env = {"SHELF": f"http://127.0.0.1:{environment.ports.get('shelf', 0)}"}
    return Service(name="writer", role="writer", command=command, env=env, start_s=1, **_build_common(environment))


def _build_reader(environment, port):
    command = ("read", str(port))
    if environment.conventions.is_local:
        folder = f"{environment.data_folder}/shelf"
        command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", folder)
    probe = Probe(path="/words.txt", body={}, deadline_s=120)
    return Service(
        name="reader",
        role="reader",
        is_entry=True,
        command=command,
        port=port,
        probe=probe,
        **_build_common(environment),
    )


def _build_common(environment):
    image = own_image.IMAGES["diary"].format_image(environment.registry) if environment.registry else ""
    return {
        "image": image,
        "replicas": Replicas(min=1, max=1),
        "resources": Resources(memory_bytes=2**29),
        "stop": Stop(stop_s=30),
    }


KIND = DiaryKind()
