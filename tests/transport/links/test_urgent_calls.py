"""An urgent call in the midst of a long one, over the native switch with links at a rate: what it waits for."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from switchagg.native import library
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions
from transport.switch.impairments import parse_impairments
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

pytestmark = pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")

RATE_BPS = 20_000_000
FRAME_NS = 1502 * 8 * 1_000_000_000 // RATE_BPS
WINDOW = 256
BULK_VALUES = 1_000_000
URGENT_CALLS = 5
SOON_S = 120.0


def urgent_ns(job: str, priorities: tuple[int, int]) -> list[int]:
    """Times of calls of one packet, one after the other, while a long call fills both directions of the links."""
    impaired = parse_impairments(f"rate={RATE_BPS}bit")
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), slots=1024, impairments=impaired)) as daemon:

        def work(rank: int) -> list[int]:
            with SwitchSession.join(
                daemon.control_endpoint, job, rank, 2, JoinOptions(priorities=priorities, window_slots=WINDOW)
            ) as session:
                bulk = session.allreduce(np.full(BULK_VALUES, 1 + rank, np.int32), stream=1)
                time.sleep(0.3)  # until the window stands in the queues
                took = []
                for _ in range(URGENT_CALLS):
                    begin_ns = time.monotonic_ns()
                    assert session.allreduce(np.full(300, 5 + rank, np.int32), stream=0).result(SOON_S)[0] == 11
                    took.append(time.monotonic_ns() - begin_ns)
                assert not bulk.done()
                assert (bulk.result(SOON_S) == 3).all()
                return took

        with ThreadPoolExecutor(2) as pool:
            return [max(pair) for pair in zip(*pool.map(work, range(2)), strict=True)]


def test_an_urgent_call_overtakes_a_long_one_at_the_switch() -> None:
    bound_ns = WINDOW * FRAME_NS // 2  # without classes a window stands ahead of it; with them a frame, on each link
    assert min(urgent_ns("classes", (0, 7))) <= bound_ns  # a machine that is busy elsewhere only adds to it
    assert max(urgent_ns("no classes", (7, 7))) > bound_ns
