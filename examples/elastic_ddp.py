"""Training that goes on when a worker is killed, and takes it back when it returns.

    switchagg switch --control tcp://127.0.0.1:5555 --data 127.0.0.1:5556 --lease 1
    SWITCHAGG_SWITCH=tcp://127.0.0.1:5555 python examples/elastic_ddp.py --workers 4 --steps 400 --kill 2

The launcher starts the workers, keeps their store, and starts a worker that was killed again. `--kill 2` kills two of
them, one after the other, while they train; or kill any worker yourself. SWITCHAGG_METHOD=ring needs no switch.
"""

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

import transport.torch
from transport.torch.elastic import ElasticTraining, host_store

BACK_S = 2.0


def work(steps: int, pause_s: float) -> None:
    """A worker: the loop of any training, its steps inside `with training`."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dist.init_process_group("switchagg")  # last: the others wait from here on for a worker that joins
    training = ElasticTraining(model, optimizer)
    ranks = None
    ended_s = time.time()
    while training.step < steps:
        with training:
            torch.manual_seed(1000 * training.step + training.rank)
            inputs = torch.randn(32, 64)
            labels = inputs[:, :10].argmax(1)  # what there is to learn
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(training(inputs), labels)
            loss.backward()
            optimizer.step()
        if ranks != (training.rank, training.workers) and training.rank == 0:
            waited_s = time.time() - ended_s
            print(f"step {training.step}: {training.workers} workers, loss {loss:.3f}, {waited_s:.1f} s", flush=True)
        ranks, ended_s = (training.rank, training.workers), time.time()
        time.sleep(pause_s)
    training.close()
    values = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    total = values.double().sum()
    print(f"rank {training.rank} of {training.workers}: step {training.step}, sum {total:.12f}", flush=True)
    dist.destroy_process_group()


def pass_on(process: "subprocess.Popen[str]", full: str, trains: threading.Event) -> None:
    """Show what a worker says, and notice when all of them train."""
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith("step ") and full in line:
            trains.set()


def launch(arguments: argparse.Namespace) -> int:
    """Start the workers, and those that are killed again; 0 if the training came to its end."""
    store, variables = host_store()
    environment = {"SWITCHAGG_ELASTIC": "1", "OMP_NUM_THREADS": "1", **os.environ, **variables}
    environment["WORLD_SIZE"] = str(arguments.workers)

    trains, full = threading.Event(), f": {arguments.workers} workers,"

    def start(rank: int) -> "subprocess.Popen[str]":
        command = [sys.executable, __file__, "--work", *sys.argv[1:]]
        process = subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=pass_on, args=(process, full, trains), daemon=True).start()
        return process

    workers = {rank: start(rank) for rank in range(arguments.workers)}
    returns: dict[int, float] = {}
    kills, next_kill_s = arguments.kill, math.inf
    try:
        while any(process.poll() is None for process in workers.values()):
            time.sleep(0.05)
            now_s = time.monotonic()
            if trains.is_set():  # with all workers again
                trains.clear()
                next_kill_s = now_s + arguments.kill_after_s
            if kills and now_s > next_kill_s and not returns:
                rank = random.choice([rank for rank, process in workers.items() if process.poll() is None])
                print(f"kill -9 worker {rank}", flush=True)
                workers[rank].kill()
                kills, next_kill_s = kills - 1, math.inf
            for rank, process in workers.items():
                if process.poll() == -signal.SIGKILL and rank not in returns:
                    returns[rank] = now_s + BACK_S
            for rank in [rank for rank, due_s in returns.items() if now_s > due_s]:
                del returns[rank]
                workers[rank] = start(rank)
    finally:
        for process in workers.values():
            process.kill()
            process.wait()
    del store
    # A worker may return after the others have ended, and is told so: the training has come to its end all the same.
    return 0 if any(process.returncode == 0 for process in workers.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause-s", type=float, default=0.02, help="sleep of each step, in place of a larger model")
    parser.add_argument("--kill", type=int, default=0, help="how many workers the launcher kills")
    parser.add_argument("--kill-after-s", type=float, default=2.0, help="after a change of the workers")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    assert transport.torch  # it registers the backend
    if arguments.work:
        work(arguments.steps, arguments.pause_s)
        return 0
    return launch(arguments)


if __name__ == "__main__":
    sys.exit(main())
