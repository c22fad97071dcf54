"""Small datagrams through a namespace's links, a timestamp in each: how long do they wait on their way?

python probe.py sink ADDRESS PORT COUNT          prints "ready", then the delays of COUNT datagrams in ns, as JSON
python probe.py send ADDRESS PORT COUNT TOS      one every 10 ms
"""

import json
import socket
import struct
import sys
import time


def sink(address: str, port: int, count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind((address, port))
        datagrams.settimeout(20)
        print("ready", flush=True)
        delays = []
        for _ in range(count):
            (sent_ns,) = struct.unpack("=q", datagrams.recv(8))
            delays.append(time.monotonic_ns() - sent_ns)
        print(json.dumps(delays), flush=True)


def send(address: str, port: int, count: int, tos: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
        for _ in range(count):
            datagrams.sendto(struct.pack("=q", time.monotonic_ns()), (address, port))
            time.sleep(0.01)


if __name__ == "__main__":
    role, address, port, *rest = sys.argv[1:]
    (sink if role == "sink" else send)(address, int(port), *map(int, rest))
