"""The platform's charts pull by the fleet's image cache: Helm's post-renderer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from botocore.exceptions import ClientError

from llm_serving.aws.session import AwsSession
from llm_serving.console import CommandFailed
from llm_serving.fleet.model import Fleet
from llm_serving.operations import add_ons, cached_images
from llm_serving.settings.errors import Unavailable
from tests import go_programs
from tests.go_programs import Program

REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
PREFIXES = {"quay.io": f"{REGISTRY}/demo-quay", "docker.io": f"{REGISTRY}/demo-hub"}
MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator}
spec:
  template:
    spec:
      containers:
        - image: quay.io/prometheus-operator/prometheus-operator:v0.92.1
          name: operator
          args:
            - --prometheus-config-reloader=quay.io/prometheus-operator/prometheus-config-reloader:v0.92.1
            - --docs=https://quay.io/organization/prometheus
        - name: grafana
          image: "grafana/grafana:12.3.0"
        - name: plugin
          image: nvcr.io/nvidia/k8s-device-plugin:v0.19.2
"""


def test_images_of_containers_and_of_arguments_are_renamed_and_addresses_are_not() -> None:
    deployment: Any = yaml.safe_load(cached_images.rewrite_manifests(MANIFEST, PREFIXES))
    [operator, grafana, plugin] = deployment["spec"]["template"]["spec"]["containers"]
    assert operator["image"] == f"{REGISTRY}/demo-quay/prometheus-operator/prometheus-operator:v0.92.1"
    assert operator["args"] == [
        f"--prometheus-config-reloader={REGISTRY}/demo-quay/prometheus-operator/prometheus-config-reloader:v0.92.1",
        "--docs=https://quay.io/organization/prometheus",
    ]
    assert grafana["image"] == f"{REGISTRY}/demo-hub/grafana/grafana:12.3.0"
    assert plugin["image"] == "nvcr.io/nvidia/k8s-device-plugin:v0.19.2"


def build_fleet(image_cache: dict[str, str] | None) -> Fleet:
    values = {"name": "demo", "region": "us-west-2", "zones": ["us-west-2a", "us-west-2b"], "image_cache": image_cache}
    return Fleet.model_validate({**values, "pools": {"general": {"types": "g6e.2xlarge", "size": "0..8"}}})


def test_every_chart_of_a_fleet_with_a_cache_is_installed_by_the_post_renderer(tmp_path: Path) -> None:
    rows = {}
    for name, cache in (("with", {}), ("without", None)):
        commands = add_ons.build_install_commands(build_fleet(cache), tmp_path, tmp_path / "fleet.yaml")
        rows[name] = ["--post-renderer" in command.arguments for command in commands if command.arguments[0] == "helm"]
    assert rows["with"] and all(rows["with"])
    assert not any(rows["without"])


@pytest.mark.parametrize("program", [go_programs.HELM, go_programs.HELM_4], ids=["helm 3", "helm 4"])
def test_helm_renders_a_chart_with_the_cache_s_names(program: Program, tmp_path: Path) -> None:
    try:
        helm = go_programs.find_or_build(program)
    except (Unavailable, CommandFailed) as error:
        pytest.skip(f"no Helm: {error}")
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: one\nversion: 1.0.0\n")
    (tmp_path / "templates" / "deployment.yaml").write_text(MANIFEST)
    options = cached_images.build_helm_options(build_fleet({}))
    options = [option.replace(cached_images.ACCOUNT, "123456789012") for option in options]
    command = [helm, "template", "one", str(tmp_path), *options]
    variables = {**os.environ, **cached_images.build_environment(cached_images.write_renderer(tmp_path / "plugins"))}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=variables)
    assert run.returncode == 0, run.stderr
    assert f"image: {REGISTRY}/demo-quay/prometheus-operator/prometheus-operator:v0.92.1" in run.stdout


def test_without_the_account_the_reason_is_aws_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"Error": {"Code": "ExpiredToken", "Message": "The security token included in the request is expired"}}
    sts = SimpleNamespace(get_caller_identity=Mock(side_effect=ClientError(answer, "GetCallerIdentity")))
    monkeypatch.setattr(AwsSession, "client", lambda *_: sts)
    assert cached_images.main(["us-west-2", "quay.io=ACCOUNT.dkr.ecr.us-west-2.amazonaws.com/demo-quay"]) == 3
    assert capsys.readouterr().err == "the AWS credentials have expired. Fix: sign in again (`aws sso login`).\n"
