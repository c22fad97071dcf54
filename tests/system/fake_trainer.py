"""Speaks like a trainer, and loads its link instead of training: what `mininet_run` needs to be tried without torch.

FAKE_TRAINER says what goes wrong, if anything: "killed RANK", "failed RANK", "silent RANK"; "fast": iterations are.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from emulation.testbed.children import send_report
from emulation.testbed.trainers.trainer_messages import (
    ComputedAlone,
    Evaluated,
    IterationReport,
    TrainingFailed,
    TrainingFinished,
    TrainingStarted,
    TransferTimes,
)

PORT = 7777
BYTES_PER_ITERATION = 250_000  # 20 ms at 100 Mb/s: the link is backlogged most of the time
ITERATION_S = 0.025


def swallow(receiver: socket.socket) -> None:
    while True:
        receiver.recv(65_536)


def prepare() -> None:
    """Nothing is loaded in advance."""


def run_rank(path: str) -> int:
    config = json.loads(Path(path).read_text())
    rank, workers, workload = config["rank"], config["workers"], config["scenario"]["workload"]
    iteration_s = 0.0 if os.environ["FAKE_TRAINER"] == "fast" else ITERATION_S
    trouble, _, whose = os.environ.get("FAKE_TRAINER", "").partition(" ")
    send_report(TrainingStarted([threading.get_native_id()], [], "cd"))
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("0.0.0.0", PORT))
    threading.Thread(target=swallow, args=(receiver,), daemon=True).start()
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    following = (f"10.0.0.{(rank + 1) % workers + 1}", PORT)
    begun = time.monotonic()
    for iteration in range(workload["iterations"]):
        if whose and rank == int(whose) and iteration == 3:
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "failed":
                send_report(TrainingFailed("the switch at tcp://10.0.0.254:5555 is gone"))
                return 1
            time.sleep(600)
        start = time.monotonic()
        for _ in range(BYTES_PER_ITERATION // 1458 if iteration_s else 3):
            sender.sendto(bytes(1458), following)
        time.sleep(max(0.0, start + iteration_s - time.monotonic()))
        duration_ns = round((time.monotonic() - start) * 1e9)
        send_report(
            IterationReport(
                iteration=iteration,
                start_ns=round((start - begun) * 1e9),
                duration_ns=duration_ns,
                monotonic_start_ns=round(start * 1e9),
                forward_ns=duration_ns // 10,
                backward_ns=duration_ns // 10,
                optimizer_ns=0,
                compute_ns=duration_ns // 5,
                first_layer_ns=duration_ns // 4,
                first_layer_bytes=1458,
                buckets=[TransferTimes(1458, round(start * 1e9), round(start * 1e9) + duration_ns)],
                loss=1.0 / (1 + iteration),
                retransmissions=rank * iteration,
            )
        )
        if iteration + 1 in config["holds"]:
            while (order := json.loads(sys.stdin.readline()))["order"] == "computealone":
                send_report(ComputedAlone([1_000_000 * (rank + 1)] * order["iterations"]))
    send_report(Evaluated(iteration, round((time.monotonic() - begun) * 1e9), 0.98, 0.1))
    send_report(TrainingFinished(62_500, 250_000, "ab", rank, {}, None, {}, []))
    return 0
