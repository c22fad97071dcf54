"""A traffic generator for one namespace: TCP, UDP, or UDP bundles (GSO). Programs of this kind are not installed.

python load.py sink  ADDRESS PORT                        reads TCP and UDP on PORT until it is ended
python load.py tcp   ADDRESS PORT SECONDS
python load.py udp   ADDRESS PORT SECONDS [SEGMENTS [PAYLOAD_BYTES]]      blocks on its socket buffer
python load.py --wait ...      prints "ready" once it has started, and begins when its standard input ends
"""

import contextlib
import selectors
import socket
import sys
import time

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104


def sink(address: str, port: int) -> None:
    selector = selectors.DefaultSelector()
    listener = socket.create_server((address, port))
    selector.register(listener, selectors.EVENT_READ)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((address, port))
    datagrams.setsockopt(SOL_UDP, UDP_GRO, 1)
    datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    selector.register(datagrams, selectors.EVENT_READ)
    space = bytearray(1 << 18)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            else:
                with contextlib.suppress(OSError):
                    if not key.fileobj.recv_into(space) and key.fileobj is not datagrams:
                        selector.unregister(key.fileobj)


def tcp(address: str, port: int, seconds: float) -> None:
    with socket.create_connection((address, port), timeout=10) as stream:
        data, end = bytes(1 << 18), time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(data)


def udp(address: str, port: int, seconds: float, segments: int = 16, payload_bytes: int = 1460) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((address, port))
        datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)
        if segments > 1:
            datagrams.setsockopt(SOL_UDP, UDP_SEGMENT, payload_bytes)
        data, end = bytes(segments * payload_bytes), time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(ConnectionRefusedError):
                datagrams.send(data)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--wait":
        print("ready", flush=True)
        sys.stdin.read()
        del arguments[0]
    role, address, port, *rest = arguments
    if role == "sink":
        sink(address, int(port))
    elif role == "tcp":
        tcp(address, int(port), float(rest[0]))
    else:
        udp(address, int(port), float(rest[0]), *map(int, rest[1:]))
