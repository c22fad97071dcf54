"""Where the fuzzers begin: fuzz_plane.c with the golden vectors, the others with plausible runs.

python tests/native/fuzz_seeds.py TARGET FOLDER    writes one file for each
"""

import random
import sys
from pathlib import Path

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
ADMIT, ADMIT_BELOW, EVICT, RAW = 0, 8, 16, 24
"""First bytes that choose a step; see fuzz_plane.c."""


def admit(words: list[str]) -> bytes:
    fields = dict(word.split("=") for word in words)
    ports = [int(port) for port in fields["ports"].split(",")]
    streams = [part.split("+") for part in fields["streams"].split(",")]
    return bytes(
        [
            ADMIT_BELOW if "parent" in fields else ADMIT,
            int(fields["id"]),
            *int(fields["generation"]).to_bytes(4, "big"),
            len(ports),
            int(fields["elements"]),
            len(streams),
            *(int(number) for stream in streams for number in stream),
            ports[0],
            ports[1] - 1 if len(ports) > 1 else 0,
            *(int(number) for number in fields.get("parent", "").split(",") if number),
        ]
    )


def script(vector: str) -> bytes:
    """The steps of one vector; what it expects is the model's business there."""
    steps = b""
    for line in vector.splitlines():
        words = line.split("#")[0].split()
        if words and words[0] == "job":
            steps += admit(words[1:])
        elif words and words[0] == "evict":
            steps += bytes([EVICT, int(words[1])])
        elif words and words[0] == "packet":
            datagram = bytes.fromhex("".join(words[2:]))
            steps += bytes([RAW, int(words[1]), len(datagram)]) + datagram
    return steps


def lively_run(seed: int) -> bytes:
    """Steps of fuzz_endpoint.c in which calls are defined and submitted, and most datagrams arrive; in every fourth run
    some results are forged."""
    rng = random.Random(seed)
    world = rng.randbytes(4) + bytes([30]) + rng.randbytes(5)
    steps = []
    for _ in range(80):
        steps += rng.choice(
            [
                bytes([0, *rng.randbytes(2), rng.randrange(61)]),  # define a call
                bytes([14, 15]),  # all submit, all send
                bytes([15]),
                *[
                    bytes([rng.choice([5, 6, 7, 10, 11]), rng.randrange(24)]) for _ in range(8)
                ],  # arrive, copy, get lost
                bytes([4, *rng.randbytes(2), 3, 19, 35]),  # time passes, all timers
            ]
        )
        if seed % 4 == 3 and rng.random() < 0.1:
            steps += bytes([13, rng.randrange(3), rng.randrange(96), 200, rng.randrange(256)])
    return world + bytes(steps)


def lively_exchange(seed: int) -> bytes:
    """Steps of fuzz_qp.c: messages are posted, most packets arrive in order; every fourth run is attacked."""
    rng = random.Random(seed)
    world = bytes([seed & 1 | rng.randrange(64) << 1, rng.randrange(40)])
    steps = []
    for _ in range(rng.randrange(20, 150)):
        end = rng.randrange(2)
        steps += rng.choice(
            [
                bytes([end, rng.randrange(128), rng.choice([0, 1, 31, 32, 33, 64, rng.randrange(256)])]),  # post a send
                bytes([2 | end] * 3),  # post receives
                *[bytes([4 | end | rng.randrange(8) << 4])] * 4,  # emit
                *[bytes([6 | 0x80]) * rng.randrange(1, 9)] * 5,  # deliver in order
                bytes([8 | rng.randrange(8) << 4]),  # in any order
                bytes([10 | rng.randrange(16) << 4]),  # twice
                bytes([12 | rng.randrange(15) << 4]),  # lose one
                bytes([14 | end | rng.randrange(4) << 4]),  # time passes
            ]
        )
        if seed % 4 == 3 and rng.random() < 0.05:
            steps += bytes([rng.choice([0xFC, 0xFD]), *rng.randbytes(8)])
    return world + bytes(steps)


def write(target: str, folder: Path) -> None:
    if target == "fuzz_plane":
        for vector in VECTORS.glob("*.stf"):
            (folder / vector.stem).write_bytes(script(vector.read_text()))
    else:
        make = lively_exchange if target == "fuzz_qp" else lively_run
        for seed in range(40):
            (folder / f"run{seed}").write_bytes(make(seed))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
