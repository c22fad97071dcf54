"""One rank of a job, as a process of its own: sums known integers until it is stopped; `test_failure.py` runs it.

    training_rank.py CONTROL JOB RANK WORKERS CALLS TIMEOUT_S

Prints "joined ADDRESS GENERATION", then "call N" after each exact sum. Ends with 0 after CALLS calls, with 3 and the
error's words on stderr if a call failed or the join was refused, with 4 if a sum was wrong.
"""

import sys

import numpy as np

from switchagg.errors import SwitchaggError
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession

ELEMENTS = 20_000


def train(control: str, job: str, rank: int, workers: int, calls: int, timeout_s: float) -> int:
    with SwitchSession.join(control, job, rank, workers, JoinOptions(window_slots=32, timeout_s=timeout_s)) as session:
        print("joined", "{}:{}".format(*session._diagnosis.address), session.job.generation, flush=True)
        for call in range(calls):
            array = np.arange(ELEMENTS, dtype=np.int64) * (rank + 1) + call
            session.allreduce(array).result(120)
            expected = np.arange(ELEMENTS, dtype=np.int64) * (workers * (workers + 1) // 2) + call * workers
            if not np.array_equal(array, expected):
                print(f"rank {rank}: call {call} gave a wrong sum", file=sys.stderr)
                return 4
            print("call", call, flush=True)
    return 0


if __name__ == "__main__":
    control, job, rank, workers, calls, timeout_s = sys.argv[1:]
    try:
        status = train(control, job, int(rank), int(workers), int(calls), float(timeout_s))
    except SwitchaggError as error:
        print(f"rank {rank}: {error}", file=sys.stderr)
        status = 3
    sys.exit(status)
