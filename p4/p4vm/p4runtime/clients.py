"""Controllers that are connected: who is primary, and what is sent to whom (P4Runtime specification, 5 and 16)."""

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4vm.p4runtime.refusal import INVALID, MISSING, RuntimeRefusal, unimplemented

WAITING_MAX = 1024
"""Messages that wait for a client; further packets are dropped and counted."""

Election = tuple[int, int]


@dataclass(eq=False)
class RuntimeClient:
    """A stream. election: (high, low), of its last arbitration. messages: None ends the stream."""

    election: Election = (0, 0)
    messages: queue.Queue[Any] = field(default_factory=queue.Queue)

    def send(self, message: Any) -> bool:
        """Whether there was room."""
        if self.messages.qsize() >= WAITING_MAX:
            return False
        self.messages.put(message)
        return True


class Clients:
    """Thread-safe."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.dropped = 0
        self._lock = threading.Lock()
        self._all: list[RuntimeClient] = []
        self._highest: Election = (0, 0)

    def arbitrate(self, client: RuntimeClient, update: Any) -> None:
        """A client's election id; tells whom it concerns. Raises RuntimeRefusal: the stream ends."""
        self.check_device(update)
        if update.HasField("role") and update.role.name:
            raise unimplemented(f"role {update.role.name}: roles other than the default one")
        election = (update.election_id.high, update.election_id.low)
        with self._lock:
            if any(other is not client and other.election == election for other in self._all):
                raise RuntimeRefusal(
                    INVALID, f"another controller has election id {election[0]}, {election[1]} already"
                )
            before = self._primary()
            client.election = election
            if client not in self._all:
                self._all.append(client)
            self._highest = max(self._highest, election)
            changed = self._primary() is not before or self._primary() is client
            for other in self._all if changed else [client]:
                other.send(self._standing(other))

    def leave(self, client: RuntimeClient) -> None:
        client.messages.put(None)
        with self._lock:
            if client in self._all:
                was_primary = self._primary() is client
                self._all.remove(client)
                for other in self._all if was_primary else []:
                    other.send(self._standing(other))

    def check_device(self, request: Any) -> None:
        """Raises RuntimeRefusal: it isn't for this device."""
        if request.device_id != self.device:
            raise RuntimeRefusal(MISSING, f"device {request.device_id} is not here; this is device {self.device}")

    def check_primary(self, request: Any) -> None:
        """Raises RuntimeRefusal: it isn't for this device, or not from the primary controller."""
        self.check_device(request)
        with self._lock:
            primary = self._primary()
        election = (request.election_id.high, request.election_id.low)
        if primary is None or primary.election != election:
            who = "nobody is" if primary is None else f"{primary.election[0]}, {primary.election[1]} is"
            raise RuntimeRefusal(
                code_pb2.PERMISSION_DENIED, f"election id {election[0]}, {election[1]} is not the primary's; {who}"
            )

    def is_primary(self, client: RuntimeClient) -> bool:
        with self._lock:
            return client is self._primary()

    def tell_primary(self, message: Any) -> None:
        with self._lock:
            primary = self._primary()
        if primary is None or not primary.send(message):
            self.dropped += 1

    def close(self) -> None:
        """Ends all streams."""
        with self._lock:
            for client in self._all:
                client.messages.put(None)

    def _primary(self) -> RuntimeClient | None:
        """The client with the highest election id there ever was; none while that one is gone."""
        return next((other for other in self._all if other.election == self._highest), None)

    def _standing(self, client: RuntimeClient) -> Any:
        """The message by which arbitration tells a client its standing."""
        message = p4runtime_pb2.StreamMessageResponse()
        message.arbitration.device_id = self.device
        message.arbitration.election_id.high, message.arbitration.election_id.low = self._highest
        primary = self._primary()
        if primary is None:
            message.arbitration.status.code = MISSING
            message.arbitration.status.message = "there is no primary controller"
        elif primary is not client:
            message.arbitration.status.code = code_pb2.ALREADY_EXISTS
            message.arbitration.status.message = "another controller is primary"
        return message
