"""An urgent call of a ring beside a long one, in Mininet, on strict queues: with a flow for each class, and without.

Every rank is a process; the median is that of rank 0's urgent calls. A call alone is the baseline.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from emulation.experiments.progress_text import Passing
from emulation.scenario.errors import RunFailed
from emulation.testbed.mininet.emulated_network import EmulatedNetwork
from emulation.testbed.mininet.shaping import NetworkSpec
from switchagg.priority import BEST_EFFORT, CLASSES, MOST_URGENT
from transport.group.group_opening import GroupOptions, open_group
from transport.meshes.job_key import TOKEN_VARIABLE, new_token

PORT = 7100
URGENT_BYTES = 10_000
CALLS = 12
PAUSE_S = 0.12
LIMIT_S = 60.0
CASES = (("alone", True, False), ("classes", True, True), ("no classes", False, True))


def measure(
    links: Sequence[str], workers: int, rate_bps: int, bulk_bytes: int, log: Callable[[str], None]
) -> Iterator[str]:
    """A line per link: medians in ms. Raises RunFailed if a rank fails."""
    yield f"{'link':8}" + "".join(f"{name + ', ms':>16}" for name, _, _ in CASES)
    for link in links:
        medians_ms = []
        for name, classes, bulk in CASES:
            log(Passing(f"{link}: {name}"))
            with EmulatedNetwork(NetworkSpec(workers, rate_bps=rate_bps, priority_queues=CLASSES)) as net:
                hosts = [worker.address for worker in net.workers]
                task = json.dumps({"link": link, "classes": classes, "bulk_bytes": bulk * bulk_bytes, "hosts": hosts})
                command = [sys.executable, "-m", "tools.bench.urgent", task]
                pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
                pipes["env"] = {**os.environ, TOKEN_VARIABLE: new_token()}
                ranks = [net.spawn(rank, [*command, str(rank)], **pipes) for rank in range(workers)]
                outputs = [process.communicate(timeout=2 * LIMIT_S)[0] for process in ranks]
                if any(process.returncode for process in ranks):
                    raise RunFailed(f"urgent calls over {link}: a rank failed")
                medians_ms.append(float(outputs[0]))
        yield f"{link:8}" + "".join(f"{value:16.2f}" for value in medians_ms)


def run_rank(link: str, classes: bool, bulk_bytes: int, hosts: list[str], rank: int) -> None:
    """Print the median time of the urgent calls, in ms."""
    more = {"priorities": (MOST_URGENT, BEST_EFFORT)} if classes else {}
    options = GroupOptions(LIMIT_S, LIMIT_S, more=more)
    with open_group("ring", link, rank, [(host, PORT) for host in hosts], job="urgent", options=options) as group:
        group.barrier().result(LIMIT_S)
        bulk = [np.ones(bulk_bytes // 4, np.float32) for _ in range(2 if bulk_bytes else 0)]
        pending = [group.allreduce(array, key=key, priority=BEST_EFFORT) for key, array in enumerate(bulk, 1)]
        times = []
        for number in range(CALLS):
            time.sleep(PAUSE_S)
            urgent = np.ones(URGENT_BYTES // 4, np.float32)
            begin_ns = time.monotonic_ns()
            group.allreduce(urgent, key=1000 + number, priority=MOST_URGENT).result(LIMIT_S)
            times.append((time.monotonic_ns() - begin_ns) / 1e6)
            if not (urgent == len(hosts)).all():
                raise SystemExit("a wrong sum")
        for future in pending:
            future.result(LIMIT_S)
        group.barrier().result(LIMIT_S)
    print(statistics.median(times))


if __name__ == "__main__":
    run_rank(**json.loads(sys.argv[1]), rank=int(sys.argv[2]))
