"""How the members of a job come together over ZeroMQ: each dials all others, and both sides check the other's hello.

A connection counts once the one dialled has answered the hello with its own, whether they fit or not, so that both
sides can name a disagreement. Unknown peers delay nobody.
"""

import contextlib
import time
from collections.abc import Sequence

import zmq

from switchagg.errors import DecodeError, JobError
from transport.links.link import Address
from transport.meshes.hello import Hello, disagreement, unpack
from transport.zeromq.sockets import Line, Station, text

CONTROL = b"switchagg mesh 1"
"""First of the three frames of the meshes' own messages; a member's message has two."""

HELLO, REFUSED, BYE, LOST = b"hello", b"refused", b"bye", b"lost"

LEFT_S = 1.0
"""A member that came and left again for so long has found something wrong."""


def control_words(frames: Sequence[zmq.Frame]) -> tuple[bytes, bytes] | None:
    """Keyword and body of a mesh's own message; None if it is something else."""
    if len(frames) != 3 or frames[0].bytes != CONTROL:
        return None
    return frames[1].bytes, frames[2].bytes


class Gathering:
    """Connects one member to all others; made, run and left behind.

    early: messages of members that were done before us, with their sender.
    """

    def __init__(self, mine: Hello, addresses: Sequence[Address], station: Station, timeout_s: float) -> None:
        self._mine, self._addresses, self._station = mine, addresses, station
        self._timeout_s = timeout_s
        self._until = time.monotonic() + timeout_s
        others = [member for member in range(mine.members) if member != mine.member]
        self._lines = {member: station.dial(addresses[member]) for member in others}
        self._member_of = {line: member for member, line in self._lines.items()}
        self._unsaid = set(others)  # whom our hello was not sent to
        self._answered: set[int] = set()
        self._came: dict[int, bytes] = {}
        self._left: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        self.early: list[tuple[int, list[zmq.Frame]]] = []

    def run(self) -> dict[int, tuple[Line, bytes]]:
        """Line and identity of every other member. Raises JobError: which members are missing and why, or what doesn't
        fit."""
        try:
            return self._run()
        except JobError as error:
            for line in self._lines.values():
                if line.up:
                    with contextlib.suppress(zmq.ZMQError):
                        line.socket.send_multipart([CONTROL, BYE, str(error).encode()[:1000]], zmq.NOBLOCK)
            raise

    def _run(self) -> dict[int, tuple[Line, bytes]]:
        lines = dict.fromkeys(self._lines.values())
        while True:
            for line in lines:
                if line in self._member_of:
                    self._look_at(line)
            self._listen()
            if self._answered >= self._came.keys() >= self._lines.keys():
                return {member: (line, self._came[member]) for member, line in self._lines.items()}
            self._give_up()
            pause_s = self._until - time.monotonic()
            if self._left:
                pause_s = min(pause_s, LEFT_S / 4)
            lines = self._station.poll(max(0.0, pause_s))[1]

    def _look_at(self, line: Line) -> None:
        member = self._member_of[line]
        for came_up in line.hear():
            self._answered.discard(member)
            self._unsaid.add(member)
            if came_up:
                self._left.pop(member, None)
            else:
                self._left[member] = time.monotonic()
        if member in self._unsaid and line.up:
            with contextlib.suppress(zmq.ZMQError):
                line.socket.send_multipart([CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
                self._unsaid.discard(member)
        self._station.want_room(line, member in self._unsaid and line.up)
        while True:
            try:
                frames = line.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.ZMQError:
                return
            self._hear_answer(member, frames)

    def _hear_answer(self, member: int, frames: list[zmq.Frame]) -> None:
        words = control_words(frames)
        place = text(self._addresses[member])
        if words is None or words[0] not in (HELLO, REFUSED):
            raise self._error(f"what answers at {place} speaks another protocol")
        if words[0] == REFUSED:
            raise self._error(f"member {member} at {place}: {words[1].decode(errors='replace')}")
        try:
            theirs = unpack(words[1])
        except DecodeError as error:
            raise self._error(f"what answers at {place} speaks another protocol: {error}") from error
        if fault := disagreement(self._mine, theirs, place, member):
            raise self._error(fault)
        self._answered.add(member)

    def _listen(self) -> None:
        """Handle hellos; keep messages of members that finished before us."""
        while True:
            try:
                identity, *frames = self._station.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            except zmq.ZMQError:  # a connection broke while it was read
                continue
            words = control_words(frames)
            sender = next((member for member, name in self._came.items() if name == identity.bytes), None)
            if words is not None and words[0] == HELLO:
                place = str(frames[0].get("Peer-Address"))
                self._meet(identity.bytes, words[1], place)
            elif sender is not None and words is not None and words[0] == BYE:
                self._left.setdefault(sender, time.monotonic())
                self._reasons[sender] = words[1].decode(errors="replace")
            elif sender is not None:
                self.early.append((sender, frames))

    def _meet(self, identity: bytes, body: bytes, place: str) -> None:
        try:
            theirs = unpack(body)
        except DecodeError:
            return  # an unknown peer
        with contextlib.suppress(zmq.ZMQError):
            self._station.router.send_multipart([identity, CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
        if fault := disagreement(self._mine, theirs, place):
            raise self._error(fault)
        # A member that dials again has a new identity, and its old connection is closed.
        if (known := self._came.get(theirs.member, identity)) != identity and self._is_there(known):
            raise self._error(f"two say they are member {theirs.member}; one is at {place}")
        self.early = [item for item in self.early if item[0] != theirs.member]
        self._came[theirs.member] = identity

    def _is_there(self, identity: bytes) -> bool:
        """Whether its connection is still open: a ROUTER refuses to send to a closed one."""
        try:
            self._station.router.send_multipart([identity, CONTROL, HELLO, self._mine.pack()], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _give_up(self) -> None:
        now = time.monotonic()
        missing = [member for member in self._lines if member not in self._answered or member not in self._came]
        if now >= self._until:
            raise self._error(self._words(missing) + f" within {self._timeout_s:g} s")
        for member, since in self._left.items():
            if now - since >= LEFT_S:
                why = f": {self._reasons[member]}" if self._reasons.get(member) else ""
                lacking = f"{self._words(missing)}, and " if missing else ""
                raise self._error(f"{lacking}member {member} came and left again{why}")

    def _words(self, missing: list[int]) -> str:
        told = []
        for member in missing:
            line = self._lines[member]
            trouble = line.trouble or ("" if member in self._came else "it does not reach this member")
            told.append(f"member {member} at {text(line.address)}" + (f" ({trouble})" if trouble else ""))
        return f"no connection with {', '.join(told)}"

    def _error(self, words: str) -> JobError:
        mine = self._mine
        return JobError(f"job {mine.job}, member {mine.member} of {mine.members}: {words}")
