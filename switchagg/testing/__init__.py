"""Live tests of a switch, packet by packet, for scripts and as a plugin of pytest (docs/packet-tests.md).

A door to `transport.testing`, which needs `pip install 'switchagg[test]'`, and nothing else. For tests and their
authors; nothing of switchagg, p4vm, transport and emulation imports it. Start at transport/testing/switches.py.

As a plugin: `pytest -p switchagg.testing`, or in the top-most conftest.py `pytest_plugins = ["switchagg.testing"]`.
"""

from switchagg.aggregator import Verdict
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import Op, Packet, Route, decode, encode
from transport.testing.jobs import ANY, Job, Unexpected
from transport.testing.joined import JoinedSwitch
from transport.testing.packets import describe, difference
from transport.testing.sequences import UnderFaults
from transport.testing.switches import Port, Switch, SwitchUnderTest

DROP, REPLY, BROADCAST, UP, RESEND = Verdict
"""The verdicts of a switch (S5, H3, Q4)."""

pytest_plugins = ["transport.testing.fixtures", "transport.testing.vector_files"]

__all__ = [
    "ANY",
    "BROADCAST",
    "DROP",
    "REPLY",
    "RESEND",
    "UP",
    "Job",
    "JobConfig",
    "JoinedSwitch",
    "Op",
    "Packet",
    "Port",
    "Route",
    "StreamConfig",
    "Switch",
    "SwitchUnderTest",
    "UnderFaults",
    "Unexpected",
    "Verdict",
    "decode",
    "describe",
    "difference",
    "encode",
]
