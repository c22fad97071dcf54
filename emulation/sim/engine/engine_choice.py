"""Which packet engine a simulation runs on: C where that has all it needs, else Python.

`SWITCHAGG_SIM_ENGINE=python` or `compiled` asks for one, where a scenario leaves it open.
"""

import os
from collections.abc import Callable

from emulation.sim.engine.compiled_lossless import CompiledLosslessNetwork
from emulation.sim.engine.compiled_network import CompiledNetwork
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.switched_network import SwitchedNetwork
from emulation.topologies.topology import Topology
from switchagg.codecs.spec import parse_sums
from switchagg.dataplane.native import NativePlane
from switchagg.errors import JobError
from switchagg.native import library, native_codec
from transport.group.method_name import METHODS

VARIABLE = "SWITCHAGG_SIM_ENGINE"
PYTHON, COMPILED, AUTO = "python", "compiled", "auto"


def lacking(config: SimulationConfig) -> str:
    """What of a simulation of method `switch` the engine in C lacks; "" if nothing."""
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


def lacking_of_hosts(config: SimulationConfig) -> str:
    """What of a host method's simulation the engine in C lacks; "" if nothing."""
    if missing := library.missing():
        return missing
    if config.tcp:
        return f"it has no congestion control of connections, as {config.tcp}"
    return ""


def lacking_beside(method: str, config: SimulationConfig) -> str:
    """What it lacks of another job, on the network of one that runs there; "" if nothing. Its hosts may be Python's."""
    if not METHODS[method].packets:
        return ""
    return lacking(config) if method == "switch" else f"it has no switches of {method}"


def network(
    config: SimulationConfig, topology: Topology, lacks: Callable[[SimulationConfig], str] = lacking
) -> SwitchedNetwork:
    """The network of a simulation, of the engine that it runs on. JobError: C is asked for, and can't."""
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
