"""A worker without a model: in each step it adds a row of numbers to those of the others, through the switch.

RANK and WORLD_SIZE say who it is, as torchrun sets them; SWITCHAGG_SWITCH says where the switch is. Yours to change:
what happens when another worker dies.
"""

import os
import time

import numpy as np

from switchagg.errors import AggregationFailed  # noqa: F401
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

SWITCH = os.environ.get("SWITCHAGG_SWITCH", "tcp://127.0.0.1:5555")
RANK, WORKERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = int(os.environ.get("STEPS", "12"))


def join(job: str, alive: list[int]) -> SwitchSession:
    """Meet the others that are alive, under the name of a job that is new: ranks of a job are 0 to its workers - 1."""
    return SwitchSession.join(SWITCH, job, alive.index(RANK), len(alive), JoinOptions(timeout_s=5))


def agree(session: SwitchSession, step: int) -> int:
    """The least of all workers' steps: one may have had a result that another has not."""
    least = np.array([-step], np.int32)
    session.allreduce(least, "max").result()
    return -int(least[0])


def gradient(step: int) -> np.ndarray:
    return np.full(1000, 10**RANK + step)


def train() -> None:
    alive = list(range(WORKERS))
    session = join("lab", alive)
    step = 0
    while step < STEPS:
        sums = gradient(step)
        session.allreduce(sums).result()
        print("step", step, "sum", int(sums[0]), flush=True)
        step += 1
        time.sleep(0.05)  # a real one would compute
    session.close()


if __name__ == "__main__":
    train()
