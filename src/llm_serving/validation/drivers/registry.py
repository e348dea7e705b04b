"""Find the drop-in drivers: every module of this package with an object `DRIVER`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

from llm_serving.settings.errors import require_choice
from llm_serving.validation.drivers.base import Driver

_OWN = {"base", "job", "registry"}


@functools.cache
def load_drivers() -> dict[str, Driver]:
    modules = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name not in _OWN]
    drivers = [importlib.import_module(f"{__package__}.{name}").DRIVER for name in sorted(modules)]
    return {driver.name: driver for driver in drivers}


def load_driver(name: str) -> Driver:
    """Return the driver `name`.

    Raises:
        InputError: there is no such driver.
    """
    drivers = load_drivers()
    require_choice("--driver", name, "driver", drivers)
    return drivers[name]
