"""The formats of profiles, an entry each, and how a name or path becomes a model profile or a workload graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emulation.scenario.profiles import chakra, goal_format, makers, simai, torch_trace
from emulation.scenario.profiles.graph import WorkloadGraph
from emulation.scenario.profiles.model_profile import ModelProfile
from emulation.scenario.profiles.model_profile import load as load_model
from emulation.scenario.profiles.profile_errors import ProfileError, read_text
from emulation.scenario.profiles.torch_events import is_trace

Profile = ModelProfile | WorkloadGraph


@dataclass(frozen=True)
class ProfileFormat:
    """A format. suffixes: of its files. load(path, workers) raises ProfileError for a file that can't be read, or has
    another number of ranks than workers; 0: any."""

    name: str
    suffixes: tuple[str, ...]
    load: Callable[[Path, int], Profile]


FORMATS: dict[str, ProfileFormat] = {
    kind.name: kind
    for kind in (
        ProfileFormat("model profile", (".toml", ".json"), lambda path, _: load_model(path.absolute())),
        ProfileFormat("Chakra", (".et",), chakra.load),
        ProfileFormat("SimAI", (".txt",), lambda path, workers: simai.decode(read_text(path), path.name, workers)),
        ProfileFormat("torch.profiler", (".gz",), torch_trace.load),
        ProfileFormat(
            "GOAL", (".goal",), lambda path, workers: goal_format.decode(read_text(path), path.name, workers)
        ),
    )
}

MAKERS: dict[str, Callable[..., WorkloadGraph]] = {
    "ddp": makers.ddp,
    "fsdp": makers.fsdp,
    "tp": makers.tensor_parallel,
    "pp": makers.pipeline_parallel,
    "3d": makers.three_d,
}
"""How ranks share the model of a profile; `[workload] parallel`."""


def load(name_or_path: str, folder: Path = Path(), workers: int = 0) -> Profile:
    """A shipped profile by its name, or a file, in `folder` unless its path is absolute; its suffix says the format,
    and a folder holds Chakra traces. workers: as of `Format`. Raises ProfileError."""
    path = folder / name_or_path
    if path.is_dir():
        return chakra.load(path, workers)
    known_format = next((kind for kind in FORMATS.values() if path.suffix in kind.suffixes), None)
    if path.suffix == ".json" and is_trace(path):
        return torch_trace.load(path, workers)
    if known_format is None or known_format.name == "model profile":
        if path.suffix and known_format is None:
            known = ", ".join(f"{suffix} ({kind.name})" for kind in FORMATS.values() for suffix in kind.suffixes)
            raise ProfileError(f"{name_or_path}: format unknown; allowed: a folder of Chakra traces, {known}")
        return load_model(name_or_path, folder)
    return known_format.load(path, workers)
