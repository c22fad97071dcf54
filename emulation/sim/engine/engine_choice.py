"""The packet engine of a simulation: the engine in C where it can simulate all that the job needs, else Python.

`SWITCHAGG_SIM_ENGINE=python` or `compiled` chooses an engine where a scenario leaves it open.
"""

import os
from collections.abc import Callable

from emulation.scenario.topologies.topology import Topology
from emulation.sim.engine.compiled_lossless import CompiledLosslessNetwork
from emulation.sim.engine.compiled_network import CompiledNetwork
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from switchagg.codecs.spec import parse_sums
from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError
from switchagg.native import library, native_codec
from transport.group.method_name import METHODS

VARIABLE = "SWITCHAGG_SIM_ENGINE"
PYTHON, COMPILED, AUTO = "python", "compiled", "auto"


def unsupported(config: SimulationConfig) -> str:
    """The reason why the engine in C can't simulate this job of method `switch`; "": it can."""
    if missing := library.missing():
        return missing
    spec = parse_sums(config.codec).for_workers(config.workers) if config.codec else None
    if config.job().partial:
        return "it has no partial sums"
    if config.dataplane != NativePlane.name:
        return f"it has the data plane native, not {config.dataplane}"
    if spec is None:
        return ""
    if spec.row_codec is None:
        return f"it has no codecs of whole arrays, as {config.codec}"
    return native_codec.missing(spec.row_codec)


def hosts_unsupported(config: SimulationConfig) -> str:
    """The reason why the engine in C can't simulate this job of a host method; "": it can."""
    if missing := library.missing():
        return missing
    if config.tcp:
        return f"it has no congestion control of connections, as {config.tcp}"
    return ""


def further_job_unsupported(method: str, config: SimulationConfig) -> str:
    """The reason why a further job can't join a network in C; "": it can. The job's hosts may be in Python."""
    if not METHODS[method].packets:
        return ""
    return unsupported(config) if method == "switch" else f"it has no switches of {method}"


def network(
    config: SimulationConfig, topology: Topology, lacks: Callable[[SimulationConfig], str] = unsupported
) -> SwitchedNetwork:
    """The simulation's network, in the chosen engine. JobError: C is requested and can't simulate it."""
    wanted = config.engine
    if wanted == AUTO:
        wanted = os.environ.get(VARIABLE, AUTO)
    if wanted not in (PYTHON, COMPILED, AUTO):
        raise JobError(f"{VARIABLE} is {wanted}; it may be {PYTHON}, {COMPILED} or {AUTO}")
    if wanted == PYTHON:
        return config.network(topology)
    why = lacks(config)
    if wanted == COMPILED and why:
        raise JobError(f"the compiled packet engine can't run this: {why}; {VARIABLE}={PYTHON} can")
    return config.network(topology) if why else config.network(topology, CompiledNetwork, CompiledLosslessNetwork)
