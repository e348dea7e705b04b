"""Helm's post-renderer for fleets with an image cache: rendered manifests pull by the cache.

    python -m llm_serving.operations.cached_images REGION HOST=PREFIX... < manifests > manifests

ACCOUNT in a prefix is the number of the account that the AWS credentials belong to.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from llm_serving.aws.preflight import identity
from llm_serving.catalog.registry import format_registry
from llm_serving.fleet import image_cache
from llm_serving.fleet.model import Fleet
from llm_serving.operations import context
from llm_serving.settings.errors import BlueprintError

ACCOUNT = "ACCOUNT"

_IMAGE_LINE = re.compile(
    r"^(?P<key>\s*(?:- )?image:\s*)(?P<quote>[\"']?)(?P<image>[^\s\"']+)(?P=quote)\s*$", re.MULTILINE
)


NAME = "cached-images"
"""Of the post-renderer: a program on PATH for Helm 3, a plugin for Helm 4.

Source: helm.sh, "Migrate v3 Plugins to Helm 4", 2026-11; ran with 3.22.0 and 4.3.1.
"""

_PLUGIN = {
    "apiVersion": "v1",
    "type": "postrenderer/v1",
    "name": NAME,
    "version": "1.0.0",
    "runtime": "subprocess",
    "runtimeConfig": {"platformCommand": [{"command": f"${{HELM_PLUGIN_DIR}}/{NAME}"}]},
}


def write_renderer(folder: Path) -> Path:
    """Write the post-renderer below `folder`, and return its own folder."""
    plugin = folder.absolute() / NAME
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "plugin.yaml").write_text(yaml.safe_dump(_PLUGIN, sort_keys=False))
    program = plugin / NAME
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {__name__} "$@"\n')
    program.chmod(0o755)
    return plugin


def build_environment(plugin: Path) -> dict[str, str]:
    """Return the variables by which Helm finds the post-renderer."""
    return {"HELM_PLUGINS": str(plugin.parent), "PATH": f"{plugin}{os.pathsep}{os.environ.get('PATH', '')}"}


def build_helm_options(fleet: Fleet) -> list[str]:
    """Return the options of `helm upgrade` that let its manifests pull by the fleet's cache; none without one."""
    prefixes = image_cache.build_prefixes(fleet, format_registry(ACCOUNT, fleet.region))
    if not prefixes:
        return []
    arguments = [fleet.region, *(f"{host}={prefix}" for host, prefix in prefixes.items())]
    return ["--post-renderer", NAME, *(f"--post-renderer-args={word}" for word in arguments)]


def rewrite_manifests(text: str, prefixes: Mapping[str, str]) -> str:
    """Return the manifests with every image of a cached registry named by the cache.

    Beside `image:` these are the names with a registry's host in arguments and custom resources, for the images of pods
    that operators make.
    """

    def rewrite_line(match: re.Match[str]) -> str:
        image = image_cache.rewrite(match["image"], prefixes)
        return f"{match['key']}{match['quote']}{image}{match['quote']}"

    hosts = "|".join(map(re.escape, prefixes))
    renamed_hosts = re.sub(rf"(?<![\w./-])({hosts})/(?=[a-z0-9])", lambda match: f"{prefixes[match[1]]}/", text)
    return _IMAGE_LINE.sub(rewrite_line, renamed_hosts)


def main(arguments: Sequence[str]) -> int:
    """Rewrite standard input; returns the exit code."""
    region, *pairs = arguments
    prefixes = dict(pair.split("=", 1) for pair in pairs)
    try:
        if any(ACCOUNT in prefix for prefix in prefixes.values()):
            account = identity.fetch_identity(context.open_session(region)).account
            prefixes = {host: prefix.replace(ACCOUNT, account) for host, prefix in prefixes.items()}
        sys.stdout.write(rewrite_manifests(sys.stdin.read(), prefixes))
    except BlueprintError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
