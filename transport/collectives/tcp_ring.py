"""Ring allreduce over TCP, as fast as Python gets: the baseline of a well-made host method.

Reduce-scatter, then all-gather, in 2(n-1) steps (Patarasuk and Yuan, 2009), run as two byte streams. A rank sends the
chunks r, r-1, r-2, …, modulo n, and receives r-1, r-2, …: what comes in step s goes out in step s + 1. So the bytes it
may send are its own chunk and as many as it has received and added, and every byte goes on as soon as it can:
receiving, adding and sending overlap, and no step waits for a whole chunk. Values are sent from, and in the second half
received into, the caller's array; the kernel's copy is the only one.

Each element is summed once, along the ring, and then copied: the result is bit-identical on all ranks.
"""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from switchagg.errors import AggregationFailed, JobError

Op = Literal["sum", "max"]
Address = tuple[str, int]

CALL_BYTES = 1 << 18
"""Most bytes of one system call: large enough that its cost vanishes, small enough that what was received is still in
the cache when it is added and sent on."""

RETRY_S = 0.02
_HELLO = struct.Struct(">8sHH")  # magic, rank, workers
_CALL = struct.Struct(">QQ")  # number of the call, bytes of the array
_MAGIC = b"sa-ring1"
_TCP_CONGESTION = 13
_ENDED = select.POLLERR | select.POLLHUP | select.POLLRDHUP


class TcpRing:
    """One rank's place in a ring of persistent connections. Made by `connect`; not thread-safe; `close` it.

    congestion_control: what both sockets use, as the kernel says.
    """

    def __init__(self, rank: int, workers: int, left: socket.socket | None, right: socket.socket | None) -> None:
        """left: connected to rank - 1, right: to rank + 1, both None for one worker; they belong to the ring."""
        self.rank, self.workers = rank, workers
        self._left, self._right = left, right
        self._calls = 0
        self._scratch: NDArray[np.uint8] = np.empty(CALL_BYTES, np.uint8)
        self._failure: AggregationFailed | None = None
        for end in (left, right):
            if end is not None:
                end.setblocking(False)
        self.congestion_control = "" if right is None else congestion_control_of(right)

    @classmethod
    def connect(
        cls,
        rank: int,
        addresses: Sequence[Address],
        *,
        congestion_control: str | None = None,
        buffer_bytes: int | None = None,
        timeout_s: float = 30.0,
    ) -> "TcpRing":
        """Listen at addresses[rank], connect to the right neighbour, wait for the left one; at most timeout_s.

        congestion_control: a name the kernel knows; None leaves the machine's default. buffer_bytes: what each socket
        may hold; bound it by the queue of a shaped link, or TCP fills that queue until it drops; None leaves it to the
        kernel. Raises JobError that names the neighbour or the option.
        """
        workers = len(addresses)
        if not 0 <= rank < workers:
            raise ValueError(f"rank {rank} of {workers} workers: 0 to {workers - 1}")
        if workers == 1:
            return cls(rank, workers, None, None)
        deadline = time.monotonic() + timeout_s
        options = (congestion_control, buffer_bytes)
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(_socket(rank, *options))
            try:
                listener.bind(addresses[rank])
                listener.listen(2)
            except OSError as error:
                raise JobError(
                    f"ring rank {rank}: can't listen at {_text(addresses[rank])}: {error.strerror}"
                ) from error
            right = _connected(rank, (rank + 1) % workers, addresses, options, deadline)
            opened.callback(right.close)
            right.sendall(_HELLO.pack(_MAGIC, rank, workers))
            left = _accepted(rank, workers, listener, deadline)
            opened.pop_all()
            listener.close()
        return cls(rank, workers, left, right)

    def allreduce(self, array: NDArray[Any], op: Op = "sum", timeout_s: float = 60.0) -> None:
        """Combine `array` (1-D, C-contiguous, any number type) over all ranks, in place. All ranks call alike.

        Raises AggregationFailed, naming the neighbour, when its connection ends, when nothing moves for timeout_s, or
        when the ranks disagree about the call; the ring can't be used after that.
        """
        assert array.ndim == 1
        assert array.flags.c_contiguous
        if self._failure is not None:
            raise self._failure
        if self._left is None or self._right is None:
            return
        self._calls += 1
        turn = _Turn(self.rank, self.workers, array, op, self._calls, self._left, self._right, self._scratch)
        try:
            turn.run(timeout_s)
        except AggregationFailed as error:
            self._failure = error
            self.close()  # the neighbours learn of it at once
            raise

    def close(self) -> None:
        """Close both connections. Again it does nothing."""
        for end in (self._left, self._right):
            if end is not None:
                end.close()

    def __enter__(self) -> "TcpRing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Turn:
    """One allreduce on the two streams.

    `taken`: bytes of the incoming stream that lie in the array, added or copied; `sent`: bytes of the outgoing one.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        array: NDArray[Any],
        op: Op,
        number: int,
        left: socket.socket,
        right: socket.socket,
        scratch: NDArray[np.uint8],
    ) -> None:
        self._rank, self._workers = rank, workers
        self._array, self._bytes = array, array.data.cast("B") if len(array) else memoryview(b"")
        self._combine = np.add if op == "sum" else np.maximum
        self._left, self._right = left, right
        self._scratch = scratch[: len(scratch) - len(scratch) % array.itemsize]
        self._part = 0  # bytes of an element that is still incomplete, at the start of the scratch memory
        steps = 2 * (workers - 1)
        self._incoming = self._pieces([(rank - step - 1) % workers for step in range(steps)])
        self._outgoing = self._pieces([(rank - step) % workers for step in range(steps)])
        self._reduced = sum(high - low for low, high in self._incoming[: workers - 1])
        self._own = self._outgoing[0][1] - self._outgoing[0][0]
        self._total_in = sum(high - low for low, high in self._incoming)
        self._total_out = sum(high - low for low, high in self._outgoing)
        self._in_step = self._in_at = self._out_step = self._out_at = 0
        self._taken = self._sent = 0
        self._head = _CALL.pack(number, array.nbytes)
        self._head_sent = self._head_taken = 0
        self._their_head = bytearray(_CALL.size)

    def run(self, timeout_s: float) -> None:
        """Until everything is sent and taken."""
        moved = time.monotonic()
        while not self._done():
            progress = self._receive()
            progress |= self._send()
            if progress:
                moved = 0.0  # read the clock only when there is nothing else to do
            elif not self._wait((moved or (moved := time.monotonic())) + timeout_s - time.monotonic()):
                waits_for = self._left_rank if self._taken < self._total_in else self._right_rank
                raise self._failed(f"nothing moved for {timeout_s:g} s, waiting for rank {waits_for}", waits_for)

    @property
    def _left_rank(self) -> int:
        return (self._rank - 1) % self._workers

    @property
    def _right_rank(self) -> int:
        return (self._rank + 1) % self._workers

    def _pieces(self, chunks: list[int]) -> list[tuple[int, int]]:
        """(first, end) byte of each chunk in the array."""
        size, item = len(self._array), self._array.itemsize
        return [(c * size // self._workers * item, (c + 1) * size // self._workers * item) for c in chunks]

    def _done(self) -> bool:
        heads = self._head_sent == self._head_taken == _CALL.size
        return heads and self._taken == self._total_in and self._sent == self._total_out

    def _wait(self, timeout_s: float) -> bool:
        """Sleep until a socket can do what we want of it; False after the timeout."""
        poll = select.poll()
        if self._head_taken < _CALL.size or self._taken < self._total_in:
            poll.register(self._left, select.POLLIN)
        unsent = self._head_sent < _CALL.size or self._sent < self._total_out
        if unsent:  # also with nothing to send yet: the neighbour's end is told
            ready = self._head_sent < _CALL.size or self._sent < self._sendable()
            poll.register(self._right, _ENDED | (select.POLLOUT if ready else 0))
        events = dict(poll.poll(max(0.0, timeout_s) * 1e3))
        if unsent and events.get(self._right.fileno(), 0) & _ENDED:
            raise self._broken("")
        return bool(events)

    def _sendable(self) -> int:
        """Bytes of the outgoing stream that are final, up to its end."""
        return min(self._own + self._taken, self._total_out)

    # Receiving

    def _receive(self) -> bool:
        if self._head_taken < _CALL.size:
            return self._receive_head()
        while self._in_step < len(self._incoming) and self._in_at == self._size(self._incoming, self._in_step):
            self._in_step, self._in_at = self._in_step + 1, 0
        if self._in_step == len(self._incoming):
            return False
        low, high = self._incoming[self._in_step]
        at = low + self._in_at
        if self._in_step >= self._workers - 1:
            got = self._take(self._bytes[at : min(high, at + CALL_BYTES)])
            self._in_at += got
            self._taken += got
            return got > 0
        return self._receive_and_add(at, high)

    def _receive_and_add(self, at: int, high: int) -> bool:
        """Bytes of a chunk to be reduced: they wait in the scratch memory until an element is whole."""
        room = min(len(self._scratch), high - at)
        got = self._take(self._scratch.data[self._part : room])
        if not got:
            return False
        item = self._array.itemsize
        whole = (self._part + got) // item * item
        if whole:
            mine = self._array[at // item : (at + whole) // item]
            self._combine(mine, self._scratch[:whole].view(self._array.dtype), out=mine)
            self._in_at += whole
            self._taken += whole
        rest = self._part + got - whole
        if rest and whole:
            self._scratch[:rest] = self._scratch[whole : whole + rest].copy()
        self._part = rest
        return True

    def _receive_head(self) -> bool:
        got = self._take(memoryview(self._their_head)[self._head_taken :])
        self._head_taken += got
        if self._head_taken == _CALL.size and self._their_head != self._head:
            theirs = _CALL.unpack(self._their_head)
            mine = _CALL.unpack(self._head)
            left = self._left_rank
            raise self._failed(
                f"rank {left} is in call {theirs[0]} with {theirs[1]} bytes, this rank in call {mine[0]} with "
                f"{mine[1]}: all ranks must make the same calls",
                left,
            )
        return got > 0

    def _take(self, into: memoryview) -> int:
        """Bytes received, 0 if there are none yet."""
        try:
            got = self._left.recv_into(into)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken(str(error.strerror)) from error
        if not got:
            raise self._broken("")
        return got

    # Sending

    def _send(self) -> bool:
        if self._head_sent < _CALL.size:
            return self._send_head()
        ready = self._sendable()
        if self._sent == ready:
            return False
        self._next_out()
        low, high = self._outgoing[self._out_step]
        at = low + self._out_at
        done = self._give([self._bytes[at : min(high, at + CALL_BYTES, at + ready - self._sent)]])
        self._advance(done)
        return done > 0

    def _send_head(self) -> bool:
        """The head and the first values in one call: a small array goes out in one segment."""
        parts = [memoryview(self._head)[self._head_sent :]]
        if self._own:
            low, high = self._outgoing[0]
            parts.append(self._bytes[low : min(high, low + CALL_BYTES)])
        done = self._give(parts)
        of_head = min(done, _CALL.size - self._head_sent)
        self._head_sent += of_head
        self._advance(done - of_head)
        return done > 0

    def _next_out(self) -> None:
        while self._out_at == self._size(self._outgoing, self._out_step):
            self._out_step, self._out_at = self._out_step + 1, 0

    def _advance(self, done: int) -> None:
        self._out_at += done
        self._sent += done

    def _give(self, parts: list[memoryview]) -> int:
        """Bytes the kernel took."""
        try:
            return self._right.sendmsg(parts) if len(parts) > 1 else self._right.send(parts[0])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken(str(error.strerror)) from error

    @staticmethod
    def _size(pieces: list[tuple[int, int]], step: int) -> int:
        return pieces[step][1] - pieces[step][0]

    def _broken(self, words: str) -> AggregationFailed:
        """A connection ended. Both are looked at: the end of one rank goes round the ring in no time."""
        poll = select.poll()
        poll.register(self._left, _ENDED)
        poll.register(self._right, _ENDED)
        ended = dict(poll.poll(0))
        ends = ((self._left, self._left_rank), (self._right, self._right_rank))
        ranks = tuple(sorted({rank for end, rank in ends if ended.get(end.fileno(), 0) & _ENDED}))
        names = " and ".join(f"rank {rank}" for rank in ranks) or "a neighbour"
        reason = f" ({words})" if words else ""
        return AggregationFailed(
            f"rank {self._rank}: {names} closed the connection, or died{reason}", job="ring", missing=ranks
        )

    def _failed(self, words: str, rank: int) -> AggregationFailed:
        return AggregationFailed(f"rank {self._rank}: {words}", job="ring", missing=(rank,))


def congestion_control_of(connection: socket.socket) -> str:
    """TCP congestion control of a socket."""
    return connection.getsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, 16).split(b"\0")[0].decode("ascii")


def set_congestion_control(connection: socket.socket, name: str) -> None:
    """Choose one socket's congestion control. CAP_NET_ADMIN may choose any, also where the namespace's default may not
    be changed. Raises JobError."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, name.encode("ascii"))
    except OSError as error:
        raise JobError(f"TCP congestion control {name}: the kernel refuses it here: {error.strerror}") from error


def _socket(rank: int, congestion_control: str | None, buffer_bytes: int | None) -> socket.socket:
    """A TCP socket with our options, set before it connects: the window's scale is agreed then."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if congestion_control is not None:
            set_congestion_control(made, congestion_control)
        if buffer_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    except BaseException:
        made.close()
        raise
    return made


def _connected(
    rank: int, right: int, addresses: Sequence[Address], options: tuple[str | None, int | None], deadline: float
) -> socket.socket:
    """A connection to the right neighbour, who may not listen yet."""
    while True:
        attempt = _socket(rank, *options)
        try:
            attempt.settimeout(max(0.001, deadline - time.monotonic()))
            attempt.connect(addresses[right])
            return attempt
        except OSError as error:
            attempt.close()
            if time.monotonic() + RETRY_S >= deadline:
                raise JobError(
                    f"ring rank {rank}: no connection to rank {right} at {_text(addresses[right])}: {error}"
                ) from error
        time.sleep(RETRY_S)


def _accepted(rank: int, workers: int, listener: socket.socket, deadline: float) -> socket.socket:
    """The connection of the left neighbour; strangers are sent away."""
    left = (rank - 1) % workers
    while (left_s := deadline - time.monotonic()) > 0:
        listener.settimeout(left_s)
        try:
            made, _ = listener.accept()
        except TimeoutError:
            break
        try:
            made.settimeout(max(0.001, min(5.0, deadline - time.monotonic())))
            hello = made.recv(_HELLO.size, socket.MSG_WAITALL)
        except OSError:
            hello = b""
        if hello == _HELLO.pack(_MAGIC, left, workers):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
        made.close()
    raise JobError(f"ring rank {rank}: rank {left} did not connect in time")


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
