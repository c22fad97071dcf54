"""Regressions of speed and memory: ratios of two measurements of one process are held to those of ratios.toml."""

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

from emulation.experiments.bench import codec_times
from emulation.experiments.bench.plane_times import BundleTraffic, endpoint_rows, timer_of
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.native import library
from tests.oracles.oracle_network import OracleConfig, oracle

RATIOS = tomllib.loads(Path(__file__).with_name("ratios.toml").read_text(encoding="utf-8"))


def of_planes() -> Iterator[tuple[str, float]]:
    reference, native = (median(timer_of(plane)(BundleTraffic(8, 256), 0.2)) for plane in ("reference", "native"))
    yield "data plane native, over reference", reference / native
    python, compiled = (
        endpoint_rows(name, 360, True, ({"verify": "off"},))[0]["ns_per_packet"]["median"]
        for name in ("python", "native")
    )
    yield "endpoint native, over python", python / compiled


def of_codecs() -> Iterator[tuple[str, float]]:
    for row in codec_times.measure(True, lambda _: None, codec_times.SIZES[-1:], ("lanes8", "rotated8"), {})["rows"]:
        if row["implementation"] == "native":
            yield f"{row['what']}, of memcpy", row["share_of_memcpy"]


def of_packet_engines() -> Iterator[tuple[str, float]]:
    for method in ("switch", "ring"):
        cpu_ns = {}
        config = SimulationConfig(8, LinkConfig(100_000_000_000, 1_000), dataplane="native")
        for terms in (config, oracle(config)):
            begun_ns = time.process_time_ns()
            assert not time_allreduce(terms, method, 1_000_000).wrong_elements
            cpu_ns[type(terms)] = time.process_time_ns() - begun_ns
        yield f"packet engine, over its oracle: {method}", cpu_ns[OracleConfig] / cpu_ns[SimulationConfig]


def of_memory() -> Iterator[tuple[str, float]]:
    """In a process of its own: what other tests left to be freed would be counted as this worker's."""
    program = (
        "import json; from tests.emulation.experiments import worker_memory as m; print(json.dumps(m.worker_memory()))"
    )
    counted = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    if counted is not None:  # glibc before 2.33 doesn't count
        yield "memory of a worker, over 2 windows of frames", counted["memory_bytes"] / counted["memory_limit_bytes"]


@pytest.mark.skipif(bool(library.missing()), reason=library.missing())
def test_no_ratio_is_worse_than_the_file_allows() -> None:
    """Beside load a measurement may be off: what is worse is measured up to three times, and must be so each time."""
    worse: dict[str, float] = {}
    for attempt in range(3):
        measured = dict(chain(of_planes(), of_codecs(), of_packet_engines(), of_memory()))
        assert measured.keys() >= RATIOS["least"].keys(), "a ratio that nothing measures catches nothing"
        now = {name: measured[name] for name, least in RATIOS["least"].items() if measured[name] < least}
        now |= {name: measured[name] for name, most in RATIOS["most"].items() if measured.get(name, 0) > most}
        worse = {name: ratio for name, ratio in now.items() if not attempt or name in worse}
        if not worse:
            return
    assert not worse
