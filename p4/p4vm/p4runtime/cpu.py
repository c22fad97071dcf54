"""The CPU port: packets between the program and controllers, with the header that the P4Info gives them.

To the program it is a port like any other, one end of a pair of sockets; the other end is ours.
"""

import contextlib
import socket
from typing import Any

from google.rpc import code_pb2
from p4.v1 import p4runtime_pb2

from p4vm.host.ports import FRAME_MAX, InterfacePort
from p4vm.p4runtime.refusal import INVALID, RuntimeRefusal
from p4vm.p4runtime.runtime_pipeline import ForwardingPipeline, number

ETHERNET_BYTES = 18


class CpuPort:
    """`port` is the switch's end. Closed by `close`; then `receive` ends."""

    def __init__(self, port: int) -> None:
        inside, self._outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inside.setblocking(False)
        self.port = InterfacePort(port, "cpu", inside, FRAME_MAX - ETHERNET_BYTES)

    def send(self, pipeline: ForwardingPipeline, packet: Any) -> None:
        """A p4.v1.PacketOut, to the program. Raises RuntimeRefusal."""
        data = _header(pipeline.header("packet_out"), packet) + packet.payload
        if not 0 < len(data) <= FRAME_MAX:
            raise RuntimeRefusal(INVALID, f"a packet of {len(data)} bytes; expected 1 to {FRAME_MAX}")
        try:
            self._outside.send(data)
        except OSError as error:
            raise RuntimeRefusal(code_pb2.UNAVAILABLE, f"the CPU port takes no packet: {error.strerror}") from None

    def receive(self) -> bytes:
        """The next packet for controllers; waits. Empty: closed."""
        try:
            return self._outside.recv(FRAME_MAX)
        except OSError:
            return b""

    def close(self) -> None:
        """The switch closes its own end."""
        with contextlib.suppress(OSError):
            self._outside.shutdown(socket.SHUT_RDWR)
        self._outside.close()


def packet_in(pipeline: ForwardingPipeline, data: bytes) -> Any:
    """The message that brings controllers a packet from the CPU port; without room for the header it is all payload."""
    message = p4runtime_pb2.StreamMessageResponse()
    header = pipeline.header("packet_in")
    fields = [] if header is None else list(header.metadata)
    left = bits = sum(field.bitwidth for field in fields)
    if 8 * len(data) < bits:
        fields, bits = [], 0
    value = int.from_bytes(data[: (bits + 7) // 8], "big")
    for field in fields:
        left -= field.bitwidth
        bits_of_field = value >> left & (1 << field.bitwidth) - 1
        size = max(1, (bits_of_field.bit_length() + 7) // 8)
        message.packet.metadata.add(metadata_id=field.id, value=bits_of_field.to_bytes(size, "big"))
    message.packet.payload = data[(bits + 7) // 8 :]
    return message


def _header(header: Any | None, packet: Any) -> bytes:
    """The bytes in front of a controller's packet, for the program. Raises RuntimeRefusal."""
    values = {field.metadata_id: field.value for field in packet.metadata}
    fields = [] if header is None else list(header.metadata)
    strange = sorted(set(values) - {field.id for field in fields})
    missing = [field.name for field in fields if field.id not in values]
    if strange or missing or len(values) < len(packet.metadata):
        why = f"needs {missing[0]}" if missing else f"has no metadata {strange[0]}" if strange else "has one twice"
        raise RuntimeRefusal(INVALID, f"packet-out {why}")
    value = bits = 0
    for field in fields:
        value = value << field.bitwidth | number(values[field.id], field.bitwidth, field.name)
        bits += field.bitwidth
    return value.to_bytes(bits // 8, "big")
