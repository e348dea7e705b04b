from __future__ import annotations

import ipaddress
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_serving.rehearsal import emulator
from llm_serving.services.service import Service
from llm_serving.targets.deployment_plan import DeploymentPlan
from llm_serving.targets.local.environment import SHORTCUTS_NOTE, SHORTCUTS_VARIABLE

PlanFactory = Callable[[], DeploymentPlan]


def test_a_deployment_names_what_differs_from_production(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHORTCUTS_VARIABLE, raising=False)
    deployment = make_plan().deployment
    assert any("runs on this machine's CPU in place of" in sentence for sentence in deployment.emulated)
    assert SHORTCUTS_NOTE in deployment.emulated
    assert emulator.EMULATION_NOTE in deployment.emulated
    for word in ("fork", "garbage", "compiles", "NIXL", f"{SHORTCUTS_VARIABLE}=off"):
        assert word in SHORTCUTS_NOTE
    assert all(SHORTCUTS_VARIABLE not in process.env for process in deployment.workers)


def test_an_engine_without_shortcuts_says_nothing_of_them(
    make_plan: PlanFactory, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SHORTCUTS_VARIABLE, raising=False)
    file = working_folder / "mine/blueprint.yaml"
    file.write_text(file.read_text().replace("pattern: aggregated", "pattern: aggregated\nengine: llama.cpp"))
    assert SHORTCUTS_NOTE not in make_plan().deployment.emulated


def test_without_shortcuts_every_engine_process_runs_as_in_production(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHORTCUTS_VARIABLE, "off")
    plan = make_plan()
    assert SHORTCUTS_NOTE not in plan.deployment.emulated
    assert all(process.env[SHORTCUTS_VARIABLE] == "off" for process in plan.deployment.workers)
    assert f'{SHORTCUTS_VARIABLE}="off"' in plan.text, "a changed switch restarts the engines"


def get_option(process: Service, name: str) -> str:
    return process.command[process.command.index(name) + 1]


def test_the_routers_administration_is_at_an_address_that_the_folders_path_does_not_tell(
    make_plan: PlanFactory,
) -> None:
    plan = make_plan()
    address = plan.deployment.environment.hidden_host
    assert ipaddress.ip_address(address).is_loopback
    assert make_plan().deployment.environment.hidden_host == address, "a second deploy changes nothing"
    (plan.directory.data / "secret").unlink()
    assert make_plan().deployment.environment.hidden_host != address


def test_engines_and_metrics_pages_listen_at_that_address_alone_and_the_front_where_clients_look(
    make_plan: PlanFactory,
) -> None:
    """They ask for no key and look at no Origin or Host: a web page could call them at 127.0.0.1."""
    deployment = make_plan().deployment
    hidden_host = deployment.environment.hidden_host
    assert {(engine.host, get_option(engine, "--host")) for engine in deployment.workers} == {(hidden_host,) * 2}
    [router] = deployment.entries
    assert get_option(router, "--host") == get_option(router, "--prometheus-host") == hidden_host
    assert (router.host, f"--listen={router.host}:{router.port}" in router.command) == ("127.0.0.1", True)


def test_processes_ask_each_other_without_the_users_proxy(
    make_plan: PlanFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", "corp.example")
    environment = make_plan().deployment.environment
    hosts = ("127.0.0.1", environment.hidden_host, "corp.example")
    for name, value in environment.env.items():
        monkeypatch.setenv(name, value)
    assert all(urllib.request.proxy_bypass(host) for host in hosts)
    assert not urllib.request.proxy_bypass("example.org")
    monkeypatch.setenv("no_proxy", "corp.example")  # negative control: the lower one counts
    assert not urllib.request.proxy_bypass("127.0.0.1")


def test_the_embedded_aws_requires_a_key_that_every_process_has_and_no_other_user(make_plan: PlanFactory) -> None:
    plan = make_plan()
    [server] = [process for process in plan.deployment.all_services if process.name == "aws"]
    access_key = server.env[emulator.ACCESS_KEY_VARIABLE]
    assert access_key not in ("", emulator.DUMMY_KEY)
    assert {process.env["AWS_ACCESS_KEY_ID"] for process in plan.deployment.workers} == {access_key}
    assert not any(access_key in word for process in plan.deployment.all_services for word in process.command)
    assert emulator.get_access_key(plan.deployment.environment.s3_endpoint or "") == access_key
