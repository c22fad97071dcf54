"""Are the reliable connections in Python and in C the same machine? Both get the same inputs, step by step.

A script is drawn from a seed: messages of all sizes, sending with all limits, frames lost, twice, late and in any
order, timers early and late. After every step frames must be the same bytes, and so must messages, deadlines, counters.
"""

import ctypes
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from switchagg.errors import AggregationFailed
from tests.native.core_sources import CORE, source
from transport.meshes.reliable import Message, Receiver, ReliableConfig, Sender

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

MS = 1_000_000
TIMED_OUT = -110
CONNECTION = 0xFEDCBA98


class NativeConfig(ctypes.Structure):
    """`struct sa_reliable_config`."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("segment", "window", "ack_every", "retry_limit")),
        *((name, ctypes.c_int64) for name in ("rto_initial", "rto_min", "rto_max", "delayed_ack")),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("reliable") / "pair.so"
    files = [str(Path(__file__).with_name("reliable_pair.c")), str(source("reliable.c"))]
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{CORE}"]
    subprocess.run(["gcc", *flags, *files, "-o", str(made)], check=True)
    loaded = ctypes.CDLL(str(made))
    loaded.pair_new.restype = ctypes.c_void_p
    loaded.pair_message.restype = ctypes.c_int64
    return loaded


class Script:
    def __init__(self, library: ctypes.CDLL, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        segment_bytes = rng.choice([1, 7, 100])
        self.config = ReliableConfig(
            segment_bytes=segment_bytes,
            window_bytes=segment_bytes * rng.choice([1, 2, 5, 20, 40, 300]),
            rto_initial_ns=rng.choice([5, 200]) * MS,
            rto_min_ns=rng.choice([MS // 100, MS]),
            rto_max_ns=1000 * MS,
            ack_every_segments=rng.choice([1, 2, 2, 5]),
            delayed_ack_ns=rng.choice([0, MS, 10 * MS]),
            retry_limit=rng.choice([3, 30]),
        )
        self.loss, self.twice = rng.choice([0, 0, 0.05, 0.4]), rng.choice([0, 0.1])
        self.late = rng.choice([0, 0, 0.05, 0.5])
        self.sender = Sender(self.config, CONNECTION, "script", 1)
        self.receiver = Receiver(self.config, CONNECTION)
        self._c = library
        each = self.config
        native = NativeConfig(
            each.segment_bytes, each.window_segments, each.ack_every_segments, each.retry_limit,
            each.rto_initial_ns, each.rto_min_ns, each.rto_max_ns, each.delayed_ack_ns,
        )  # fmt: skip
        self._pair = ctypes.c_void_p(library.pair_new(ctypes.byref(native), ctypes.c_uint32(CONNECTION)))
        self._buffer = ctypes.create_string_buffer(1 << 16)
        self._numbers = [0, 0]
        self.air: tuple[list[tuple[int, bytes]], ...] = ([], [])  # segments, acknowledgements: number and bytes
        self.now_ns = rng.randrange(10**15)
        self.received = 0
        self.failed = False

    def close(self) -> None:
        self._c.pair_free(self._pair)

    def run(self, steps: int) -> None:
        choices: list[Any] = [self.submit, self.send, self.send, self.deliver, self.deliver, self.deliver, self.timer]
        for _ in range(steps):
            self.now_ns += self.rng.choice([0, 1000, 30_000, MS // 3])
            self.rng.choice(choices)()
            self.compare()
            if self.failed:
                return
        self.loss = self.late = 0
        for _ in range(60):  # and now in peace, so that scripts also end
            self.now_ns += MS
            self.send(1000)
            while any(self.air):
                self.deliver()
                self.send(1000)
            self.timer(1.0)
            self.compare()
            if self.failed or self.sender.idle:
                return

    def submit(self) -> None:
        size = self.config.segment_bytes
        data = self.rng.randbytes(self.rng.choice([0, 1, size - 1, size, size + 1, 3 * size, self.rng.randrange(900)]))
        tag, head = self.rng.getrandbits(64), self.rng.choice([0, min(64, len(data)), min(13, len(data))])
        self.sender.submit(tag, data)
        self._c.pair_submit(self._pair, ctypes.c_uint64(tag), data, ctypes.c_uint64(len(data)), head)

    def send(self, limit: int = -1) -> None:
        limit = limit if limit >= 0 else self.rng.choice([0, 1, 2, 8, 64])
        frames = self.sender.frames_to_send(self.now_ns, limit)
        assert self._sent(0, limit) == frames
        self._launch(0, frames)
        acks = self.receiver.frames_to_send(self.now_ns)
        assert self._sent(1, 2) == acks
        self._launch(1, acks)

    def _sent(self, acks: int, limit: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < limit:
            size = self._c.pair_send(self._pair, acks, ctypes.c_int64(self.now_ns), self._buffer)
            assert size >= 0
            if not size:
                break
            found.append(self._buffer.raw[:size])
        return found

    def _launch(self, acks: int, frames: list[bytes]) -> None:
        for frame in frames:
            number = self._numbers[acks]
            self._numbers[acks] += 1
            if self.rng.random() >= self.loss:
                self.air[acks].extend([(number, frame)] * (1 + (self.rng.random() < self.twice)))

    def deliver(self) -> None:
        acks = self.rng.randrange(2)
        air = self.air[acks]
        if not air:
            return
        number, frame = air.pop(self.rng.randrange(len(air)) if self.rng.random() < self.late else 0)
        (self.sender if acks else self.receiver).receive(frame, self.now_ns)
        assert self._c.pair_receive(self._pair, acks, number, ctypes.c_int64(self.now_ns)) == 0
        tag = ctypes.c_uint64()
        while True:
            size = self._c.pair_message(self._pair, ctypes.byref(tag), self._buffer)
            message = self.receiver.next_message()
            if message is None:
                assert size == -1
                return
            assert Message(tag.value, self._buffer.raw[:size]) == message
            self.received += 1

    def timer(self, due: float = 0.5) -> None:
        if self.rng.random() < due and (deadline := self.sender.next_deadline_ns()) is not None:
            self.now_ns = max(self.now_ns, deadline)
        self.receiver.handle_timer(self.now_ns)
        try:
            self.sender.handle_timer(self.now_ns)
        except AggregationFailed:
            self.failed = True
        found = self._c.pair_handle_timers(self._pair, ctypes.c_int64(self.now_ns))
        assert found == (TIMED_OUT if self.failed else 0)

    def compare(self) -> None:
        state = (ctypes.c_int64 * 12)()
        self._c.pair_state(self._pair, state)
        deadlines = [self.sender.next_deadline_ns(), self.receiver.next_deadline_ns()]
        counted = self.receiver.counters
        counters = [
            *self.sender.counters.values(),
            *(counted[name] for name in counted if name != "drop_unknown_sender"),
        ]
        assert list(state) == [-1 if each is None else each for each in deadlines] + [self.sender.repeats] + counters


def test_random_scripts(library: ctypes.CDLL) -> None:
    resent = timeouts = received = failed = duplicates = ended = 0
    for seed in range(60):
        script = Script(library, seed)
        script.run(250)
        resent += script.sender.counters["retransmitted"]
        timeouts += script.sender.counters["timeouts"]
        duplicates += script.receiver.counters["duplicates"]
        received += script.received
        failed += script.failed
        ended += script.sender.idle
        script.close()
    assert min(resent, timeouts, received, duplicates) > 100
    assert ended > 30
    assert 0 < failed < 40
