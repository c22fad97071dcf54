"""A switch that is killed in mid-call, again and again, in Mininet: how long ranks get no result, and how soon the job
is back at a switch. Every sum is compared with `==`.

Ranks are processes; each writes when it got a result, on the clock that all processes of a host share.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from emulation.scenario.errors import RunFailed
from emulation.testbed.mininet.emulated_network import EmulatedNetwork
from emulation.testbed.mininet.services import ServiceProcess, SwitchPlace
from emulation.testbed.mininet.shaping import NetworkSpec
from transport.group.group_opening import open_group
from transport.meshes.job_key import TOKEN_VARIABLE, new_token

PORT, CONTROL_PORT, DATA_PORT = 7100, 5555, 5556
WORKERS, RATE_BPS, VALUES = 4, 200_000_000, 1_008_234
LEASE_S = 1.0
SOON_S = 60.0
CALM_S = 1.0
"""Time on the switch before it is killed again."""


def measure(kills: int, log: Callable[[str], None]) -> Iterator[str]:
    """Lines of the result. Raises RunFailed for a rank that ends, a wrong sum, or a job that doesn't come back."""
    place = SwitchPlace(CONTROL_PORT, DATA_PORT, "auto", "udp", 360, 1024)
    switch = place.process()
    switch = ServiceProcess((*switch.command, "--lease", str(LEASE_S)), environment=switch.environment)
    with EmulatedNetwork(NetworkSpec(WORKERS, rate_bps=RATE_BPS)) as net:
        hosts = [worker.address for worker in net.workers]
        running = net.start_data_plane(switch)
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        pipes["env"] = {**os.environ, TOKEN_VARIABLE: new_token(), "OMP_NUM_THREADS": "1"}
        task = json.dumps({"switch": place.control, "hosts": hosts})
        command = [sys.executable, "-m", "tools.bench.lost_switch", task]
        ranks = [_Rank(net.spawn(rank, [*command, str(rank)], **pipes)) for rank in range(WORKERS)]
        gaps_s, returns_s = [], []
        for kill in range(kills):
            _until(ranks, partial(_Rank.is_calm, kill=kill))
            killed_ns = time.monotonic_ns()
            running.process.kill()
            running.process.wait()
            net.services.remove(running)
            _until(ranks, partial(_Rank.has_recovered, kill=kill))
            gaps_s.append(max(rank.first_result_ns(kill) - killed_ns for rank in ranks) / 1e9)
            running = net.start_data_plane(switch)
            ready_ns = time.monotonic_ns()
            _until(ranks, partial(_Rank.has_returned, kill=kill))
            returns_s.append(max(rank.returned_ns - ready_ns for rank in ranks) / 1e9)
            log(f"kill {kill + 1} of {kills}: {gaps_s[-1]:.2f} s to a result, back after {returns_s[-1]:.2f} s")
    rate = f"{RATE_BPS // 10**6} Mb/s"
    yield f"{kills} kills, n = {WORKERS}, {VALUES} float32 a call, {rate}, lease {LEASE_S:g} s; wrong sums: 0"
    for what, times_s in (("kill to the first result of the last rank", gaps_s), ("ready to calls on it", returns_s)):
        middle, worst = statistics.median(times_s), max(times_s)
        yield f"{what:42} median {middle:.2f} s, worst {worst:.2f} s"


class _Rank:
    """What a rank's process has written so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.recoveries = self.returns = self.returned_ns = 0
        self._first_ns: list[int] = []
        self._last_ns = self._begin_ns = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at_ns, recoveries, returns = map(int, line.split())
            if recoveries > self.recoveries:
                self._first_ns.append(at_ns)
            if returns > self.returns:
                self.returned_ns = self._begin_ns = at_ns
            self._begin_ns = self._begin_ns or at_ns
            self._last_ns, self.recoveries, self.returns = at_ns, recoveries, returns

    def is_calm(self, kill: int) -> bool:
        """Whether it has had results for a while since it came to the switch, before this kill."""
        return self.returns >= kill and self._begin_ns > 0 and self._last_ns - self._begin_ns >= CALM_S * 1e9

    def has_recovered(self, kill: int) -> bool:
        """Whether it goes on after this kill."""
        return self.recoveries > kill

    def has_returned(self, kill: int) -> bool:
        """Whether it is back after this kill."""
        return self.returns > kill

    def first_result_ns(self, kill: int) -> int:
        """When it got the first result after a kill."""
        return self._first_ns[kill]


def _until(ranks: list[_Rank], condition: Callable[[_Rank], bool]) -> None:
    end_s = time.monotonic() + SOON_S
    while not all(map(condition, ranks)):
        for number, rank in enumerate(ranks):
            if rank.process.poll() is not None:
                raise RunFailed(f"rank {number} ended with status {rank.process.returncode}")
        if time.monotonic() > end_s:
            raise RunFailed(f"no progress within {SOON_S:g} s")
        time.sleep(0.005)


def _train(task: dict[str, Any], rank: int) -> None:
    """Two calls in flight until the process is ended."""
    addresses = [(host, PORT) for host in task["hosts"]]
    how = {"switch": task["switch"], "bind": addresses[rank][0], "fallback": "ring"}
    with open_group("switch", "udp", rank, addresses, job="lost", options=how) as group:
        counters = group.counters
        values = np.arange(VALUES, dtype=np.float32) % 1000
        expected = values * len(addresses) + sum(range(len(addresses)))
        arrays = [values + np.float32(rank) for _ in range(2)]
        pending = [group.allreduce(array) for array in arrays]
        while True:
            for place, array in enumerate(arrays):
                pending[place].result(SOON_S)
                counters = group.counters
                print(time.monotonic_ns(), counters["recoveries"], counters["moves_to_switch"], flush=True)
                if not np.array_equal(array, expected):
                    sys.exit("a sum is wrong")
                np.add(values, np.float32(rank), out=array)
                pending[place] = group.allreduce(array)


if __name__ == "__main__":
    _train(json.loads(sys.argv[1]), int(sys.argv[2]))
