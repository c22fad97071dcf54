"""The architectures that run."""

from p4vm.architectures.description import Architecture
from p4vm.architectures.psa import PSA
from p4vm.architectures.v1model import V1MODEL

ARCHITECTURES: dict[str, Architecture] = {architecture.package: architecture for architecture in (V1MODEL, PSA)}
"""By the type of `main`."""
