"""The half of the road that needs machines, with programs that write down how they were called in the place of a cluster.

It proves the order, what is passed on, and what is not done twice; nothing of helm, kubectl or the cluster.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_serving import console
from llm_serving.fleet.model import Fleet
from llm_serving.operations.checkpoints import Journal
from llm_serving.operations.context import Site
from llm_serving.settings.document import load
from llm_serving.terraform.runner import Terraform
from llm_serving.workflows import aws as install_aws
from llm_serving.workflows.aws import Done, Serving, Wanted
from tests.operations.conftest import Recorder

FLEET = """\
name: small
region: us-west-2
zones: us-west-2a
orchestrator: eks
pools:
  general: {types: g6e.2xlarge, size: 0..4}
add_ons: {operators: on}
"""


@pytest.fixture
def made_at(tmp_path: Path) -> Site:
    """A fleet whose stacks stand."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    program = Terraform("terraform", "terraform", "1.11.4", "linux_amd64", {}, "nowhere")
    return Site(load(file, Fleet), tmp_path, {}, program, None, "123456789012")


def installed(recorder: Recorder) -> list[str]:
    """What was installed, in order."""
    return [
        call[3] if call[0] == "helm" else "node-pools" for call in recorder.calls if call[1] in ("upgrade", "apply")
    ]


def test_charts_are_gone_on_with_where_one_failed_and_none_is_installed_twice(
    recorder: Recorder, made_at: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder.lend("aws", "kubectl")
    recorder.lend("helm", failing=("karpenter",))
    journal = Journal(made_at.data / "journal.json", "account")
    with pytest.raises(console.CommandFailed, match="helm upgrade --install karpenter"):
        install_aws._platform(made_at, journal, Done([]))
    first = installed(recorder)
    assert first == ["nvidia-device-plugin", "aws-load-balancer-controller", "karpenter"]

    recorder.lend("helm")
    done = Done([])
    install_aws._platform(made_at, Journal(made_at.data / "journal.json", "account"), done)
    assert installed(recorder)[len(first) :] == ["karpenter", "node-pools", "keda", "kuberay-operator"]
    assert done.already == ["chart nvidia-device-plugin", "chart aws-load-balancer-controller"]
    assert "✓ chart nvidia-device-plugin: done already" in capsys.readouterr().err


def test_the_blueprint_is_deployed_after_the_charts_then_validated_and_finds_the_fleets_own_cluster(
    recorder: Recorder, made_at: Site
) -> None:
    recorder.lend("aws", "kubectl", "helm")
    calls: list[tuple[str, str, str | None, int]] = []

    def note(verb: str, target: str) -> None:
        calls.append((verb, target, os.environ.get("KUBECONFIG"), len(installed(recorder))))

    serving = Serving(
        deploy=lambda *given: note("deploy", given[-1]),
        validate=lambda *given: note("validate", given[-1]),
        destroy=lambda *given: note("destroy", given[-1]),
    )
    before = os.environ.get("KUBECONFIG")
    wanted = Wanted("eks", made_at.document, made_at.data / "mine")
    journal = Journal(made_at.data / "journal.json", "account")
    install_aws._serve(wanted, serving, made_at, journal, Done([]))
    own = str(made_at.data / "kubeconfig")
    assert calls == [("deploy", "eks", own, 6), ("validate", "eks", own, 6)]
    assert os.environ.get("KUBECONFIG") == before
    served = journal.last("blueprint")
    assert served and served.note == f"{made_at.data / 'mine'} eks"


def test_a_preflight_that_passed_is_not_asked_again_for_the_same_file(
    aws: str, made_at: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, done = Wanted("eks", made_at.document, None), Done([])
    journal = Journal(made_at.data / "journal.json", "account")
    install_aws._preflight(wanted, journal, done)
    assert "identity" in capsys.readouterr().out
    install_aws._preflight(wanted, journal, done)
    again = capsys.readouterr()
    assert again.out == "" and "preflight: done already" in again.err
    assert done.already == ["preflight"]
    made_at.document.path.write_text(FLEET.replace("0..4", "0..5"))
    install_aws._preflight(wanted, journal, done)
    assert "identity" in capsys.readouterr().out
