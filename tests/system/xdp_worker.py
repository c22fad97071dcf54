"""One or several workers of a job in this process, for tests of the switch in the kernel; prints the outcome as JSON.

Contributions follow from (rank, call): the sum of each call is compared with == in here.
"""

import argparse
import json
import sys
import threading
import time
from typing import Any

import numpy as np

from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession


def contribution(rank: int, call: int, size: int) -> Any:
    """int32 (size,), any bits: sums wrap modulo 2**32."""
    return np.random.default_rng((rank, call)).integers(-(2**31), 2**31, size, dtype=np.int32)


def work(options: argparse.Namespace, rank: int, said: list[dict[str, Any]]) -> None:
    host = options.switch.partition("//")[2].partition(":")[0]
    with SwitchSession.join(
        f"tcp://{host}:{options.switch.rpartition(':')[2]}",
        options.job,
        rank,
        options.workers,
        JoinOptions(
            elements=options.elements,
            streams=options.streams,
            window_slots=options.window,
            call_timeout_s=options.timeout,
            core=options.core,
            segments_max=options.segments,
            tos=options.tos,
            congestion=options.congestion,
            bind=options.bind,
            via=options.via,
        ),
    ) as session:
        wrong = 0
        seconds = []
        for call in range(options.calls):
            values = contribution(rank, call, options.size)
            begin = time.monotonic()
            session.allreduce(values).result()
            seconds.append(time.monotonic() - begin)
            if options.check:
                expected = np.zeros(options.size, np.int32)
                for other in range(options.workers):
                    expected += contribution(other, call, options.size)
                wrong += int((values != expected).sum())
            if call == 0 and options.after_first:
                print("first", flush=True)
                sys.stdin.readline()
        said.append({"rank": rank, "wrong": wrong, "seconds": seconds, "counters": dict(session.counters)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--switch", required=True)
    parser.add_argument("--via", default="")
    parser.add_argument("--job", default="job")
    parser.add_argument("--ranks", type=int, nargs="+", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--elements", type=int, default=360)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--size", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--core", default="auto")
    parser.add_argument("--segments", type=int, default=16)
    parser.add_argument("--tos", type=int, default=0)
    parser.add_argument("--congestion", default="friendly")
    parser.add_argument("--bind")
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--after-first", action="store_true", help="say `first` after one call, wait for a line")
    options = parser.parse_args()
    said: list[dict[str, Any]] = []
    threads = [threading.Thread(target=work, args=(options, rank, said)) for rank in options.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(said), flush=True)
    sys.exit(0 if len(said) == len(threads) else 1)


if __name__ == "__main__":
    main()
