"""One worker whose switch only listens: how long do an urgent stream's packets wait behind a bulk stream's?

python urgent_worker.py listen ADDRESS PORT          prints "ready", then the delay of each urgent packet in ns
python urgent_worker.py send ADDRESS PORT CORE CREDIT_BYTES      0: no credit
"""

import socket
import struct
import sys
import time

import numpy as np

from switchagg.calls.array_calls import array_call
from switchagg.job import JobConfig, StreamConfig
from switchagg.wire import HEADER_BYTES, STREAM_OFFSET
from transport.links.udp_link import UdpLink
from transport.worker.native_worker_loop import NativeWorkerLoop
from transport.worker.worker_loop import WorkerLoop

URGENT, BULK = 0, 1
WINDOW = 600
ELEMENTS = 360
NEVER_NS = 10**11
JOB = JobConfig(
    1, 1, 1, ELEMENTS, (StreamConfig(0, 8, 0), StreamConfig(8, WINDOW, 7)), rto_initial_ns=NEVER_NS, rto_max_ns=NEVER_NS
)


def listen(address: str, port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
        datagrams.bind((address, port))
        print("ready", flush=True)
        while True:
            data = datagrams.recv(4096)
            if data[STREAM_OFFSET] == URGENT:
                high, low = struct.unpack_from(">iI", data, HEADER_BYTES)
                print(time.monotonic_ns() - (high << 32 | low), flush=True)


def send(address: str, port: int, core: str, credit_bytes: int) -> None:
    link = UdpLink(("0.0.0.0", 0), credit_bytes=credit_bytes or None)
    native = core == "native"
    loop = (NativeWorkerLoop if native else WorkerLoop)(link, JOB, 0, (address, port))  # type: ignore[operator]

    def submit(stream: int, array: "np.ndarray") -> None:  # type: ignore[type-arg]
        loop.submit(stream, array_call(array, "sum", JOB))

    submit(BULK, np.zeros(WINDOW * ELEMENTS, np.int32))
    time.sleep(0.05)
    submit(URGENT, np.array([time.monotonic_ns()], ">i8").view(">i4").astype(np.int32))
    time.sleep(0.8)
    loop.close()


if __name__ == "__main__":
    role, address, port, *rest = sys.argv[1:]
    if role == "listen":
        listen(address, int(port))
    else:
        send(address, int(port), rest[0], int(rest[1]))
