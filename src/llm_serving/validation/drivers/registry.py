"""Find the drop-in drivers: the rows of drivers.yaml, each with the functions of its module."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from pydantic import TypeAdapter

from llm_serving.settings import own_yaml
from llm_serving.settings.errors import require_choice
from llm_serving.validation.drivers.base import Driver


@functools.cache
def load_drivers() -> dict[str, Driver]:
    rows, drivers = own_yaml.read(Path(__file__).with_name("drivers.yaml")), {}
    for name in sorted(name for name in rows if not name.startswith("_")):
        module = importlib.import_module(f"{__package__}.{name.replace('-', '_')}")
        functions = {"build_command": module.build_command, "read": module.read_samples}
        drivers[name] = TypeAdapter(Driver).validate_python({"name": name, **rows[name], **functions})
    return drivers


def load_driver(name: str) -> Driver:
    """Return the driver `name`.

    Raises:
        InputError: there is no such driver.
    """
    drivers = load_drivers()
    require_choice("--driver", name, "driver", drivers)
    return drivers[name]
