"""The results there are: a module each in the folders of `results/`, with a `Published` named RESULT."""

from __future__ import annotations

import importlib
import pkgutil

from emulation.experiments.reproduce import results
from emulation.experiments.reproduce.published import Published, ReproduceError
from switchagg.option_syntax import choices


def _modules() -> dict[str, str]:
    """Name of a result -> its module."""
    modules = pkgutil.walk_packages(results.__path__, f"{results.__name__}.")
    return {module.name.rpartition(".")[2]: module.name for module in modules if not module.ispkg}


def names() -> list[str]:
    """Of all results, sorted."""
    return sorted(_modules())


def find(name: str) -> Published:
    """The result of that name. ReproduceError that lists those there are."""
    modules = _modules()
    if name not in modules:
        raise ReproduceError(f"'{name[:60]}' is unknown{choices(name, sorted(modules), 'published results')}")
    published: Published = importlib.import_module(modules[name]).RESULT
    if published.name != name:
        raise ReproduceError(f"{modules[name]}: its result is called {published.name}")
    return published
