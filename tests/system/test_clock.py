"""The machine's clock is set back and forward while jobs run: no wait ends early, and none lasts longer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WALL_CLOCK = re.compile(
    r"\btime\.time(_ns)?\(|datetime\.(now|today)|utcnow|CLOCK_REALTIME|\bgettimeofday\(|cond_init\([^,]+, NULL"
)
# What a library that is loaded first answers: the clock is a day ahead and a day back in turn, for half a second each.
JUMPS = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at)
{
    struct timespec steady;
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
    if (!failed && clock == CLOCK_REALTIME)
        at->tv_sec += steady.tv_nsec < 500000000 ? 86400 : -86400;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now)
        *now = at.tv_sec;
    return at.tv_sec;
}
"""
PROGRAM = """
import time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from switchagg.errors import JobError
from transport.group.group_opening import open_group
from transport.meshes.mesh_opening import bind_place
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions

walls, options = [], DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), lease_s=1)
with SwitchDaemon(options) as daemon, ThreadPoolExecutor(4) as pool:
    def groups(method, link, **options):
        places = [bind_place(link if method == "ring" else "tcp", "127.0.0.1") for _ in range(2)]
        addresses = [place.address for place in places]
        return list(pool.map(lambda rank: open_group(
            method, link, rank, addresses, job=method, options=options, bound=places[rank]), range(2)))
    jobs = groups("switch", "udp", switch=daemon.control_endpoint, bind="127.0.0.1") + groups("ring", "tcp")
    until = time.monotonic() + 1.6
    while time.monotonic() < until:
        walls.append(time.time())
        for future in [group.allreduce(np.full(1000, number + 1, np.int32)) for number, group in enumerate(jobs)]:
            assert future.result(20)[0] in (3, 7)
    for group in jobs:
        group.close()
    began = time.monotonic()
    try:
        open_group("switch", "udp", 0, [("127.0.0.1", 1)] * 2, job="alone",
                   options={"switch": daemon.control_endpoint, "bind": "127.0.0.1", "timeout_s": 0.5})
    except JobError as error:
        print(error)
    assert 0.4 < time.monotonic() - began < 10
jumps = [abs(later - earlier) > 80_000 for earlier, later in zip(walls, walls[1:])]
assert sum(jumps) >= 2, walls
"""


def test_calls_leases_and_joins_go_by_a_clock_that_nobody_sets(tmp_path: Path) -> None:
    source, library = tmp_path / "jumps.c", tmp_path / "jumps.so"
    source.write_text(JUMPS)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=300)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/p4", "LD_PRELOAD": str(library)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rank 1 of 2 did not join job 'alone' within 0.5 s" in done.stdout


def test_no_wait_asks_for_the_time_of_day() -> None:
    """But for what people read: a log's lines, and when a switch began."""
    sources = [path for room in ("switchagg", "transport") for path in (ROOT / room).rglob("*.[pch]*")]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if path.suffix in (".py", ".c", ".h") and WALL_CLOCK.search(path.read_text())
    }
    assert found == {"transport/switch/daemon.py", "transport/switch/event_log.py"}
