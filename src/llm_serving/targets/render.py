"""Renders a deployment for its target with the template in the blueprint's folder.

A template decides layout, never numbers. A rendered file that was edited by hand is overwritten only with --force: a
manifest beside it holds the digest of what was rendered.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import yaml
from pydantic_core import to_jsonable_python

from llm_serving import paths, processes
from llm_serving.services.deployment import Deployment
from llm_serving.settings.errors import InputError, Mistake, escape_unprintable
from llm_serving.targets import registry

if TYPE_CHECKING:
    from llm_serving.targets.base import Target
    from llm_serving.targets.template_sandbox import Environment, Failure

RENAMED = {
    "processes": "use deployment.list_services(role) for a role's, deployment.all_services for all",
    "instances": "use deployment.list_services(role)",
    "worker_processes": "use deployment.workers",
    "endpoint_processes": "use deployment.entries",
    "engine_processes": "use deployment.workers",
    "replica": "use service.node.replica",
    "rank": "use service.node.rank",
    "stateful": "use service.is_stateful",
    **dict.fromkeys(
        ("compile_cache", "labels", "ports", "prefetch", "queue", "tolerations", "zones"),
        "use what deployment.list_services(role) have: their ports, mounts, prefetch and placement",
    ),
}
"""What to write in place of fields that templates of earlier versions use."""

_JINJA = re.compile(r"\{[{%#].*?[}%#]\}")

_INCLUDE = re.compile(r'^\{% include "(templates/[\w.]+)" %\}\n', re.MULTILINE)

_MISSING = re.compile(r"has no attribute '(\w+)'")

MANIFEST = ".rendered.json"
SUFFIX = ".j2"


def find_template(folder: Path, target: str) -> Path:
    """Return the template of the blueprint in `folder` for `target`: TARGET.SUFFIX.j2, named after what it becomes.

    Raises:
        InputError: there is none.
    """
    matches = sorted(folder.glob(f"{target}.*{SUFFIX}"))
    if not matches:
        available = list_targets(folder)
        alternative = f", or use --target {' or '.join(available)}" if available else ""
        raise InputError(
            f"{folder}: no template for the target {target} ({target}.*{SUFFIX}). "
            f"Fix: copy it from the pattern's folder{alternative}."
        )
    if len(matches) > 1:
        names = " and ".join(path.name for path in matches)
        raise InputError(f"{folder}: {names} are both templates for the target {target}. Fix: keep one.")
    return matches[0]


def list_targets(folder: Path) -> list[str]:
    """Return the targets that the blueprint in `folder` has a template for."""
    return sorted({path.name.split(".")[0] for path in folder.glob(f"*.*{SUFFIX}")})


def find_own_templates(folder: Path, target: str) -> list[Path]:
    """Return the templates that a deploy of `folder` can use and that are not copies of this repository's."""
    texts = [path.read_text(encoding="utf-8") for path in paths.PATTERNS.rglob(f"*{SUFFIX}")]
    shipped = {text.encode() for text in (*texts, *map(inline_includes, texts))}
    # Those of this repository include others from templates/ alone, where the folder's own come first.
    used = [find_template(folder, target), *sorted((folder / "templates").rglob(f"*{SUFFIX}"))]
    return [path for path in used if path.read_bytes() not in shipped]


def inline_includes(text: str) -> str:
    """Return a template's text with that of this repository's templates in place of their includes."""
    return _INCLUDE.sub(lambda include: (paths.PATTERNS / include[1]).read_text(encoding="utf-8"), text)


def render_text(deployment: Deployment, source: Path) -> str:
    """Return the text that the template `source` renders for `deployment`, in a sandbox.

    Raises:
        InputError: the template is wrong, exceeds a limit, or uses what the sandbox refuses; names its file and line.
    """
    from llm_serving.targets import template_sandbox

    text = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
    for name in _INCLUDE.findall(text):
        _compile_own(name)
    jinja_env = _build_env(source.parent, paths.PATTERNS)
    try:
        result = template_sandbox.run(
            lambda: jinja_env.get_template(source.name).generate(deployment=deployment),
            lambda error: _describe_failure(error, source),
        )
    except template_sandbox.LimitExceeded as error:
        raise _build_error(source, 0, str(error)) from None
    if isinstance(result, str):
        _check_printable(result, source)
        return result
    raise _build_error(Path(result.path), result.line, result.reason, result.fix)


def _build_env(*folders: Path) -> Environment:
    """Return what reads templates of folders, the first of them first."""
    import jinja2  # takes longer to import than most commands take to run

    from llm_serving.targets import template_sandbox

    jinja_env = template_sandbox.Environment(
        # Editors on Windows begin a file with a byte order mark, which settings may have too.
        loader=template_sandbox.Loader(folders, encoding="utf-8-sig"),
        bytecode_cache=template_sandbox.COMPILED,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    jinja_env.filters |= {
        "ini_command": format_ini_command,
        "ini_environment": format_ini_env,
        "ini_value": format_ini_value,
        "yaml": format_yaml,
        "yaml_block": format_yaml_block,
        "mebibytes": count_mebibytes,
    }
    return jinja_env


@functools.cache
def _compile_own(name: str) -> None:
    """Compile a template of this repository and what it includes, once for all renderings: most of their time."""
    import jinja2

    with contextlib.suppress(jinja2.TemplateError, UnicodeError):  # the rendering says what is wrong
        _build_env(paths.PATTERNS).get_template(name)
        for included in _INCLUDE.findall((paths.PATTERNS / name).read_text(encoding="utf-8")):
            _compile_own(included)


def check(target: Target, deployment: Deployment, text: str, templates: Sequence[Path]) -> None:
    """Refuse what a user's own templates rendered wrong, each mistake at the line of the template that wrote it.

    Raises:
        InputError: with each mistake, at the line of the template that wrote it.
    """
    try:
        mistakes = list(target.find_mistakes(deployment, text))
    except InputError as error:
        mistakes = [mistake for mistake in error.mistakes if isinstance(mistake, Mistake)]
    lines = text.split("\n")
    located = []
    for mistake in mistakes:
        # What is not closed is found at the end of the text, below the line that wrote it.
        rendered = next((text for text in reversed(lines[: mistake.line]) if text.strip()), "")
        path, line = _find_writer(rendered, templates)
        located.append(replace(mistake, file=path, line=line, column=min(line, 1)))
    if located:
        raise InputError(located)


def _find_writer(rendered: str, templates: Sequence[Path]) -> tuple[Path, int]:
    """Return the template and line that wrote a line: of those that may have, the one with the most literal text."""
    best = (0, templates[0], 0)
    for path in templates:
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
            literals = _JINJA.split(line)
            weight = sum(len(literal.strip()) for literal in literals)
            if weight > best[0] and re.fullmatch(".*".join(map(re.escape, literals)), rendered):
                best = (weight, path, number)
    return best[1:]


def _check_printable(text: str, source: Path) -> None:
    """Check that people see the whole of a text: a terminal hides what its escape sequences erase."""
    for number, line in enumerate(text.split("\n"), start=1):
        escaped = escape_unprintable(line, keep="\t")
        if escaped != line:
            reason = f"line {number} of the rendered file has characters that do not print: {escaped[:200]}"
            raise _build_error(source, 0, reason, "remove them from the template, or from the value that it writes")


def render(
    deployment: Deployment,
    folder: Path,
    out: Path,
    *,
    force: bool = False,
) -> Path:
    """Render the blueprint in `folder` into the folder `out` and return the template's file.

    Args:
        force: overwrite what was edited by hand.

    Raises:
        InputError: there is no template for the target, it is wrong, or the file was edited by hand.
    """
    source = find_template(folder, deployment.target)
    file = out / source.name.removesuffix(SUFFIX)
    companions = registry.load_target(deployment.target).render_companions(deployment)
    texts = {file: render_text(deployment, source), **{out / name: text for name, text in companions.items()}}
    for edited in (path for path, text in texts.items() if not force and _would_lose_edits(path, text)):
        remedy = f"make the change in {source}" if edited == file else "keep your change in a file of another name"
        raise InputError(
            f"{edited}: edited by hand since it was rendered, and would be overwritten. Fix: {remedy}, or pass --force."
        )
    out.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.touch(mode=0o600)  # variables and commands may hold what other users of this machine should not read
        processes.write_whole(path, text)
    digests = {path.name: _compute_digest(text) for path, text in texts.items()}
    processes.write_whole(out / MANIFEST, json.dumps(digests) + "\n")
    return file


def remove(out: Path) -> None:
    """Remove what was rendered into the folder `out`, and folders that are empty then; hand-edited files stay."""
    manifest = out / MANIFEST
    for name, digest in _read_digests(manifest).items():
        file = out / name
        if file.exists() and _compute_digest(file.read_text(encoding="utf-8")) == digest:
            file.unlink()
    manifest.unlink(missing_ok=True)
    for folder in (out, out.parent, out.parent.parent):
        with contextlib.suppress(OSError):  # other files, targets or deployments are in it
            folder.rmdir()


def _would_lose_edits(file: Path, rendered: str) -> bool:
    digests = _read_digests(file.parent / MANIFEST)
    current_text = file.read_text(encoding="utf-8") if file.exists() else rendered
    return current_text != rendered and digests.get(file.name) != _compute_digest(current_text)


def _read_digests(manifest: Path) -> dict[str, str]:
    """Return the digest of each rendered file; none where Git left marks of a conflict, or there is no manifest."""
    try:
        return dict(json.loads(manifest.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return {}


def _compute_digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _describe_failure(error: Exception, source: Path) -> Failure:
    import jinja2

    from llm_serving.targets.template_sandbox import Failure

    if isinstance(error, jinja2.TemplateSyntaxError):
        return Failure(error.filename or str(source), error.lineno, error.message or "it cannot be read")
    path, line = _find_position(error.__traceback__, source)
    match = _MISSING.search(str(error)) if isinstance(error, jinja2.UndefinedError) else None
    if match and match[1] in RENAMED:
        return Failure(str(path), line, f"there is no field {match[1]} any more", RENAMED[match[1]])
    if isinstance(error, jinja2.TemplateNotFound):
        fix = "name a file of the blueprint's folder, or of blueprints/"
        return Failure(str(path), line, f"there is no template {error.name}", fix)
    if isinstance(error, UnicodeDecodeError):
        subject = "what it includes" if line else "it"
        return Failure(str(path), line, f"{subject} is not text in UTF-8", "save the file as UTF-8")
    return Failure(str(path), line, str(error))


def _build_error(path: Path, line: int, reason: str, fix: str = "") -> InputError:
    fix = fix or "use names of a Deployment's fields (src/llm_serving/services/deployment.py) and Jinja's own syntax"
    return InputError([Mistake(path, line, min(line, 1), "", "", reason.rstrip("."), fix)])


def _find_position(trace: TracebackType | None, source: Path) -> tuple[Path, int]:
    """Return the template and line where it failed: Jinja puts a template's own file and lines into the traceback."""
    position = source, 0
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        position = (Path(file), trace.tb_lineno) if file.endswith(SUFFIX) else position
        trace = trace.tb_next
    return position


def format_yaml(value: Any) -> str:
    """Return a value on one line of YAML, written as JSON, which is YAML and unambiguous."""
    return json.dumps(to_jsonable_python(value, exclude_none=True), ensure_ascii=False)


def format_yaml_block(value: Any, indent: int) -> str:
    """Return a mapping as lines of YAML below a key, which people compare line by line."""
    text = yaml.safe_dump(value, sort_keys=False, width=10**6, allow_unicode=True)
    return "\n" + textwrap.indent(text.rstrip(), " " * indent)


def count_mebibytes(count: int) -> int:
    """Whole mebibytes of a number of bytes: the unit of Kubernetes (Mi) and ECS."""
    return count // 2**20


def format_ini_value(value: Any) -> str:
    """Format a value for supervisord: `%` is its sign for expansions, and ` ;` or ` #` starts a comment.

    Raises:
        ValueError: it cannot be written there.
    """
    content = str(value)
    if any(sign in content for sign in ("\n", "\r", " ;", " #", "\t;", "\t#")):
        raise ValueError(
            f"{content!r} is not possible in supervisord's configuration: it has a line break or a comment sign"
        )
    return content.replace("%", "%%")


def format_ini_command(words: Sequence[str]) -> str:
    """Format a command line, quoted for supervisord, which splits it as a shell would; each option on its own line."""
    quoted = [format_ini_value(shlex.quote(word)) for word in words]
    return "".join(f"\n    {word}" if word.startswith("--") else f" {word}" for word in quoted).strip()


def format_ini_env(variables: Mapping[str, str]) -> str:
    """Format NAME="VALUE" pairs for supervisord, one a line; a value with such quotes, as of JSON, gets single ones."""
    for name, value in variables.items():
        if "\\" in value or ("'" in value and '"' in value) or value.strip("'\"") != value:
            raise ValueError(f"{name}={value}: supervisord's configuration takes neither both quotes nor a backslash")
    quoted = {name: f"'{value}'" if '"' in value else f'"{value}"' for name, value in variables.items()}
    return ",".join(f"\n    {name}={format_ini_value(value)}" for name, value in quoted.items())
