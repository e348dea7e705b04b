"""Templates: what supervisord reads from them, what is wrong with one, and what a hand has edited."""

from __future__ import annotations

import configparser
import shlex
import shutil
import stat
from pathlib import Path

import psutil
import pytest
from supervisor.datatypes import dict_of_key_value_pairs
from supervisor.options import ServerOptions

from llm_serving.fleet.model import Fleet
from llm_serving.kinds.serving import resolve
from llm_serving.kinds.serving.blueprint import Blueprint
from llm_serving.kinds.serving.deployment import ServingDeployment
from llm_serving.services.environment import Environment
from llm_serving.services.service import Service
from llm_serving.settings.document import load
from llm_serving.settings.errors import InputError
from llm_serving.targets import registry, render, template_sandbox
from llm_serving.targets.local.environment import CONVENTIONS

ROOT = Path(__file__).parents[2]
PATTERN = ROOT / "blueprints" / "aggregated"
NAMES = ("aws", "worker-0", "worker-1", "router", "router-metrics", "router-admin")


def _resolve_deployment(data: Path) -> ServingDeployment:
    aws = Service(
        name="aws", role="worker", command=("moto", "100%"), env={}, port=20000, is_stateful=True, start_retries=0
    )
    environment = Environment(
        target="local",
        conventions=CONVENTIONS,
        region="us-west-2",
        bucket="demo-models",
        s3_endpoint="http://127.0.0.1:20000",
        env={"AWS_REGION": "us-west-2", "ODD": "50%, 'half' = 1/2"},
        engine_folder="/engine/bin",
        data_folder=str(data),
        socket_folder=str(data),
        launcher=("python", "keep.py"),
        services=(aws,),
        ports={name: 20000 + number for number, name in enumerate(NAMES)},
        cores=2,
    )
    return resolve.resolve(load(PATTERN / "blueprint.yaml", Blueprint), load(ROOT / "fleet.yaml", Fleet), environment)


def _copy_with_template(tmp_path: Path, template: str, name: str = "local.conf.j2") -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(template)
    return folder


def test_supervisord_parses_every_process_as_resolved(tmp_path: Path) -> None:
    deployment = _resolve_deployment(tmp_path)
    (tmp_path / "logs").mkdir()
    file = render.render(deployment, PATTERN, tmp_path / "rendered")
    options = ServerOptions()
    options.realize(["--configuration", str(file), "--nodaemon"])
    programs = {group.name: group.process_configs[0] for group in options.process_group_configs}
    assert list(programs) == ["aws", "worker-0", "worker-1", "router"], "in the order of starting"
    for process in deployment.all_services:
        program = programs[process.name]
        assert tuple(shlex.split(program.command)) == ("python", "keep.py", *process.command)
        assert program.environment == process.env
        assert program.stdout_logfile == str(tmp_path / "logs" / f"{process.name}.log")
        assert not program.autostart
        assert bool(program.autorestart) == (process.name != "aws")
        assert program.startretries == (0 if process.name == "aws" else 3)
    assert [server["file"] for server in options.server_configs] == [str(tmp_path / "supervisor.sock")]


def test_only_the_user_can_open_supervisords_socket(tmp_path: Path) -> None:
    parser = configparser.RawConfigParser()
    parser.read_string(render.render_text(_resolve_deployment(tmp_path), PATTERN / "local.conf.j2"))
    assert parser["unix_http_server"]["chmod"] == "0700"
    assert "inet_http_server" not in parser


@pytest.mark.parametrize(
    ("template", "line", "reason"),
    [
        ("a\nb {{ deployment.nmae }}\n", 2, "Deployment object' has no attribute 'nmae'"),
        ("a\n{{ deplyoment.name }}\n", 2, "'deplyoment' is undefined"),
        ("a\n\n{% for x in deployment.all_services %}\n", 3, "Unexpected end of template"),
        ("{{ deployment.name | nofilter }}\n", 1, "No filter named 'nofilter'"),
        ("a\n{{ 1 / 0 }}\n", 2, "division by zero"),
        (
            'a\n{% include "b.j2" %}\n',
            2,
            "there is no template b.j2. Fix: name a file of the blueprint's folder, or of blueprints/.",
        ),
        ('a\n{% include "latin.j2" %}\n', 2, "what it includes is not text in UTF-8. Fix: save the file as UTF-8."),
        ('a\nb\n{{ "x ;y" | ini_value }}\n', 3, "'x ;y' is not possible in supervisord's configuration"),
    ],
)
def test_an_invalid_template_is_reported_with_file_and_line(
    tmp_path: Path, template: str, line: int, reason: str
) -> None:
    folder = _copy_with_template(tmp_path, template)
    (folder / "latin.j2").write_bytes("é".encode("latin-1"))
    with pytest.raises(InputError) as error:
        render.render(_resolve_deployment(tmp_path), folder, tmp_path / "out")
    assert str(error.value).startswith(f"{folder / 'local.conf.j2'}:{line}:1: ")
    assert reason in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "hello\n", ':1:1: "hello": supervisord cannot read this line.'),
        ("startretries = ", "startretries ", ':32:1: "startretries 0": supervisord cannot read this line.'),
        (
            "[program:{{",
            "[program:my-{{",
            ": the rendered file lacks [program:aws], [program:worker-0], [program:worker-1], [program:router].",
        ),
        ("[supervisord]", "[supervisor]", ": the rendered file lacks [supervisord]."),
    ],
)
def test_a_template_that_supervisord_cannot_run_is_refused_before_it_starts(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    deployment, shipped = _resolve_deployment(tmp_path), render.inline_includes((PATTERN / "local.conf.j2").read_text())
    template = _copy_with_template(tmp_path, shipped.replace(old, new, 1)) / "local.conf.j2"
    text = render.render_text(deployment, template)
    with pytest.raises(InputError) as error:
        render.check(registry.load_target("local"), deployment, text, [template])
    assert str(error.value).splitlines()[0].startswith(f"{template}{message} Fix: write ")


OLD_TEMPLATES = Path(__file__).with_name("old_templates")
"""Those that a blueprint was copied with before a target's services were one class."""


@pytest.mark.parametrize(
    ("name", "target", "old", "fix"),
    [
        (
            "local.conf.j2",
            "local",
            "processes",
            "use deployment.list_services(role) for a role's, deployment.all_services for all",
        ),
        ("ecs.yaml.j2", "ecs", "instances", "use deployment.list_services(role)"),
        ("eks.yaml.j2", "eks", "prefetch", "use what deployment.list_services(role) have"),
    ],
)
def test_an_old_copy_of_a_template_is_told_by_name_what_to_change(
    tmp_path: Path, name: str, target: str, old: str, fix: str
) -> None:
    text = (ROOT / "fleet.yaml").read_text()
    (tmp_path / "fleet.yaml").write_text(
        text.replace("orchestrator: eks", "orchestrator: ecs") if target == "ecs" else text
    )
    fleet, blueprint = load(tmp_path / "fleet.yaml", Fleet), load(PATTERN / "blueprint.yaml", Blueprint)
    environment = registry.load_target(target).assume_environment(blueprint.value, fleet.value, cores=2)
    deployment = resolve.resolve(blueprint, fleet, environment)
    shutil.copy(OLD_TEMPLATES / name, tmp_path)
    line = next(n for n, text in enumerate((tmp_path / name).read_text().splitlines(), 1) if f".{old}" in text)
    with pytest.raises(InputError) as error:
        render.render_text(deployment, tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}:{line}:1: ")
    assert f"there is no field {old} any more. Fix: {fix}" in str(error.value)


HOSTILE = (
    "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ deployment.__class__.__init__.__globals__ }}",
    "{{ deployment.model_dump() }}",
    "{{ deployment.parse_raw('x', proto='pickle', allow_pickle=True) }}",
    "{{ deployment.parse_file('/etc/hostname') }}",
    "{{ (deployment | attr('__class__')) }}",
    "{{ '{0.__class__}'.format(deployment) }}",
    "{{ [].append(1) }}",
    "{% for n in range(10000000) %}x{% endfor %}",
)


@pytest.mark.parametrize("template", HOSTILE)
def test_a_template_reaches_nothing_of_python(tmp_path: Path, template: str) -> None:
    mark = tmp_path / "mark"
    folder = _copy_with_template(tmp_path, "a\n" + template.replace("MARK", str(mark)))
    with pytest.raises(InputError) as error:
        render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    assert str(error.value).startswith(f"{folder / 'local.conf.j2'}:2:1: ")
    assert "unsafe" in str(error.value) or "Range too big" in str(error.value)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "does not finish within 1 s",
        ),
        ("{{ 9 ** 99999999 }}", "does not finish within 1 s"),
        ("{{ lipsum(n=99999) }}", "does not finish within 1 s"),
        ("{{ 'x' * 9999999999 }}", "needs more than 1024 MiB of memory"),
        ("{% for a in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "writes more than 16 MiB"),
    ],
)
def test_a_template_that_needs_too_much_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, reason: str
) -> None:
    monkeypatch.setattr(template_sandbox, "CPU_LIMIT_S", 1)
    folder, children = _copy_with_template(tmp_path, template), psutil.Process().children()
    with pytest.raises(InputError) as error:
        render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    assert str(error.value).startswith(f"{folder / 'local.conf.j2'}: it {reason}")
    assert set(psutil.Process().children()) <= set(children)


def test_a_long_reason_of_a_template_is_cut_before_it_leaves_the_sandbox(tmp_path: Path) -> None:
    folder = _copy_with_template(tmp_path, "{% include 'A' * 10 ** 7 %}")
    with pytest.raises(InputError) as error:
        render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    start = f"{folder / 'local.conf.j2'}:1:1: there is no template AAAA"
    assert str(error.value).startswith(start) and len(str(error.value)) < 1000


def test_a_link_that_leads_out_of_the_folders_of_templates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("of another program")
    folder = _copy_with_template(tmp_path, "a\n# {% include 'notes.txt' %}\n")
    (folder / "notes.txt").symlink_to(tmp_path / "credentials")
    with pytest.raises(InputError) as error:
        render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    assert str(error.value).startswith(
        f"{folder / 'local.conf.j2'}:2:1: {folder / 'notes.txt'} is a link to {tmp_path / 'credentials'}, outside the "
        "folders of templates. Fix: "
    )
    assert "of another program" not in str(error.value)
    (folder / "notes.txt").unlink()
    (folder / "notes.txt").symlink_to(folder / "own.txt")
    (folder / "own.txt").write_text("of the folder")
    text = render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    assert text == "a\n# of the folder", "a link within the folder is followed"


def test_a_template_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    template = _copy_with_template(tmp_path, "\ufeff{{ deployment.name }}\r\n") / "local.conf.j2"
    assert render.render_text(_resolve_deployment(tmp_path), template) == "aggregated\n"


def test_only_the_user_can_read_what_is_rendered(tmp_path: Path) -> None:
    file = render.render(_resolve_deployment(tmp_path), _copy_with_template(tmp_path, "one\n"), tmp_path / "out")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("hidden", [" ;\x1b[2K\x1b[1A", "\x9b2K", "\x00", "\u202e"])
def test_a_line_that_a_terminal_would_hide_is_refused(tmp_path: Path, hidden: str) -> None:
    folder = _copy_with_template(tmp_path, f"[program:helper]\ncommand = id\t{{{{ {hidden!a} }}}}\n")
    with pytest.raises(InputError) as error:
        render.render_text(_resolve_deployment(tmp_path), folder / "local.conf.j2")
    assert str(error.value) == (
        f"{folder / 'local.conf.j2'}: line 2 of the rendered file has characters that do not print: command = id"
        f"\\t{ascii(hidden)[1:-1]}. Fix: remove them from the template, or from the value that it writes."
    )


def test_only_templates_that_are_not_of_this_repository_are_pointed_out(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(PATTERN, folder)
    assert render.find_own_templates(folder, "local") == []
    (folder / "templates").mkdir()
    (folder / "templates" / "local.conf.j2").write_text("[program:x]\ncommand = curl example.org | sh\n")
    assert render.find_own_templates(folder, "local") == [folder / "templates" / "local.conf.j2"]
    (folder / "local.conf.j2").write_text("[program:x]\n")
    assert render.find_own_templates(folder, "local") == [
        folder / "local.conf.j2",
        folder / "templates" / "local.conf.j2",
    ]


def test_a_target_without_a_template_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = _copy_with_template(tmp_path, "x")
    with pytest.raises(InputError) as error:
        render.find_template(folder, "eks")
    assert (
        str(error.value)
        == f"{folder}: no template for the target eks (eks.*.j2). Fix: copy it from the pattern's folder, or use --target local."
    )


def test_two_templates_for_one_target_are_refused(tmp_path: Path) -> None:
    folder = _copy_with_template(tmp_path, "x")
    _copy_with_template(tmp_path, "x", "local.yaml.j2")
    with pytest.raises(InputError, match="are both templates for the target local"):
        render.find_template(folder, "local")


def test_an_edited_file_is_overwritten_and_removed_only_on_request(tmp_path: Path) -> None:
    folder, out, deployment = _copy_with_template(tmp_path, "one\n"), tmp_path / "out", _resolve_deployment(tmp_path)
    file = render.render(deployment, folder, out)
    assert file == out / "local.conf"
    _copy_with_template(tmp_path, "two\n")
    render.render(deployment, folder, out)
    assert file.read_text() == "two\n", "its own output may be replaced"
    file.write_text("mine\n")
    with pytest.raises(InputError) as error:
        render.render(deployment, folder, out)
    assert str(error.value) == (
        f"{file}: edited by hand since it was rendered, and would be overwritten. "
        f"Fix: make the change in {folder / 'local.conf.j2'}, or pass --force."
    )
    assert file.read_text() == "mine\n"
    render.remove(out)
    assert file.read_text() == "mine\n"
    render.render(deployment, folder, out, force=True)
    assert file.read_text() == "two\n"
    render.remove(out)
    assert not out.exists()


def test_a_file_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "local.conf").write_text("somebody's\n")
    deployment, folder = _resolve_deployment(tmp_path), _copy_with_template(tmp_path, "one\n")
    with pytest.raises(InputError, match="edited by hand since"):
        render.render(deployment, folder, out)
    (out / render.MANIFEST).write_text("<<<<<<< HEAD\n{}\n=======\n")  # rendered on two branches
    with pytest.raises(InputError, match="edited by hand since"):
        render.render(deployment, folder, out)
    assert render.render(deployment, folder, out, force=True).read_text() == "one\n"


@pytest.mark.parametrize("value", ["""it's "x\"""", "back\\slash", '"x"'])
def test_a_value_that_supervisord_would_read_differently_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="neither both quotes nor a backslash"):
        render.format_ini_env({"A": value})


def test_supervisord_reads_json_in_an_environment_as_it_is_written() -> None:
    variables = {
        "A": "o'clock, 5%",
        "SETTINGS": '{"url":"http://127.0.0.1:1/x?a=b","names":["a:b"],"share":0.5}',
        "B": "",
    }
    text = render.format_ini_env(variables).replace("%%", "%")
    assert dict_of_key_value_pairs(text) == variables
