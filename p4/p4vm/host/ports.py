"""A switch's ports: AF_PACKET sockets on interfaces, and what about an interface would mislead a program.

A bundle is several packets of a flow that the kernel joined (GRO) or has not parted yet (TSO, GSO): a program that
looks at one header of each packet sees one where there were many.
"""

import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from p4vm.control.multicast_groups import PORT_MAX
from p4vm.source import P4Error

ETH_P_ALL = 0x0003
SOL_PACKET = 263
PACKET_ADD_MEMBERSHIP = 1
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
PACKET_MR_PROMISC = 1
SIOCETHTOOL = 0x8946
SIOCGIFFLAGS = 0x8913
SIOCGIFMTU = 0x8921
IFF_UP = 1
TP_STATUS_VLAN_VALID = 1 << 4
TP_STATUS_VLAN_TPID_VALID = 1 << 6
AUXDATA = struct.Struct("=IIIHHHH")
"""struct tpacket_auxdata: status, len, snaplen, mac, net, vlan_tci, vlan_tpid."""

FRAME_MAX = 65_536 + 18
"""Longest packet that is taken, bytes: beyond the longest that interfaces send as one, bundles included."""
BUFFER_BYTES = 8 << 20
"""Asked of the kernel for each socket and direction; it may give less. To an interface that queues by itself (HTB,
netem) no more is sent than the system's default lets: the queue that a program sees is the switch's."""
RTM_GETLINK, NLM_F_REQUEST, IFLA_QDISC = 18, 1, 6

OFFLOADS = {"gro": 0x2B, "tso": 0x1E, "gso": 0x23, "rx": 0x14, "tx": 0x16}
"""ethtool's name -> request that reads it."""
BUNDLING = ("gro", "tso", "gso")


@dataclass(slots=True, eq=False)
class InterfacePort:
    """An interface that is a port of a switch. mtu: bytes without the Ethernet header."""

    number: int
    interface: str
    socket: socket.socket
    mtu: int
    warnings: list[str] = field(default_factory=list)
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(FRAME_MAX)))

    @property
    def longest(self) -> int:
        """Bytes of the longest packet the interface sends: MTU, Ethernet header, one VLAN tag."""
        return self.mtu + 18

    def close(self) -> None:
        self.socket.close()


def parse_port(text: str) -> tuple[int, str]:
    """`0@veth0`. Raises P4Error."""
    number, at, interface = text.partition("@")
    if not at or not number.isdecimal() or not interface or len(number) > 4 or int(number) > PORT_MAX:
        raise P4Error(f"port '{text}': expected NUMBER@INTERFACE like 0@veth0, NUMBER 0 to {PORT_MAX}")
    return int(number), interface


def parse_ports(texts: list[str]) -> dict[int, str]:
    """Port -> interface. Raises P4Error: not understood, or named twice."""
    ports: dict[int, str] = {}
    for text in texts:
        number, interface = parse_port(text)
        if number in ports:
            raise P4Error(f"port {number} is given twice: {ports[number]} and {interface}")
        if interface in ports.values():
            raise P4Error(f"interface {interface} is given to two ports")
        ports[number] = interface
    if not ports:
        raise P4Error("a switch needs ports: -i 0@veth0 -i 1@veth1")
    return ports


def open_port(number: int, interface: str) -> InterfacePort:
    """Raises P4Error: no such interface, not up, or this user may not."""
    try:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except PermissionError:
        raise P4Error("packets on interfaces need root (CAP_NET_RAW): sudo, or unshare -Urn for a trial") from None
    except OSError as error:
        raise P4Error(f"no packet sockets here: {error.strerror}") from None
    try:
        return _opened(opened, number, interface)
    except BaseException:
        opened.close()
        raise


def _opened(opened: socket.socket, number: int, interface: str) -> InterfacePort:
    try:
        index = socket.if_nametoindex(interface)
    except OSError:
        known = ", ".join(name for _, name in socket.if_nameindex()) or "none"
        raise P4Error(f"there is no interface {interface}; there are: {known}") from None
    flags = _request(opened, SIOCGIFFLAGS, interface)
    if not flags & IFF_UP:
        raise P4Error(f"interface {interface} is down; ip link set {interface} up")
    opened.setblocking(False)
    opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    opened.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    opened.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
    for option in (socket.SO_RCVBUF,) if queues(index) else (socket.SO_RCVBUF, socket.SO_SNDBUF):
        opened.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        try:
            opened.setsockopt(socket.SOL_SOCKET, option + 25, BUFFER_BYTES)  # SO_*BUFFORCE: beyond the system's limit
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
    opened.bind((interface, ETH_P_ALL))
    return InterfacePort(
        number, interface, opened, _request(opened, SIOCGIFMTU, interface), interface_warnings(interface)
    )


def _request(opened: socket.socket, request: int, interface: str) -> int:
    """A number about an interface."""
    ifreq = struct.pack("16si12x", interface.encode(), 0)
    answer = fcntl.ioctl(opened.fileno(), request, ifreq)
    value: int = struct.unpack_from("H" if request == SIOCGIFFLAGS else "i", answer, 16)[0]
    return value


def queues(index: int) -> bool:
    """Whether the interface has a queue of its own (a qdisc other than noqueue)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(1)
        netlink.send(struct.pack("=IHHIIBxHiII", 32, RTM_GETLINK, NLM_F_REQUEST, 1, 0, 0, 0, index, 0, 0))
        answer = netlink.recv(1 << 16)
    at = 32  # after both headers
    while at + 4 <= len(answer):
        size, kind = struct.unpack_from("=HH", answer, at)
        if kind == IFLA_QDISC:
            return not answer.startswith(b"noqueue\0", at + 4)
        at += max(4, size + 3 & ~3)
    return False


# ---- what would mislead a program


def offloads(interface: str) -> list[str]:
    """Offloads that are on, by ethtool's names; none where the driver doesn't say."""
    on = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inet:
        for name, command in OFFLOADS.items():
            value = bytearray(struct.pack("II", command, 0))
            address = struct.pack("16sP8x", interface.encode(), _address(value))
            try:
                fcntl.ioctl(inet.fileno(), SIOCETHTOOL, address)
            except OSError:
                continue
            if struct.unpack_from("I", value, 4)[0]:
                on.append(name)
    return on


def _address(value: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(value))


def interface_warnings(interface: str) -> list[str]:
    """A line for each setting that would mislead a program, with the remedy."""
    warnings = []
    bundling = [name for name in offloads(interface) if name in BUNDLING]
    if bundling:
        switches = " ".join(f"{name} off" for name in bundling)
        warnings.append(
            f"{interface}: {', '.join(name.upper() for name in bundling)} on: packets may come or go in bundles; "
            f"at both ends: ethtool -K {interface} {switches} tx off"
        )
    setting = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    try:
        if setting.read_text().strip() == "0":
            warnings.append(
                f"{interface}: IPv6 is on: hosts send router solicitations and the like; sysctl -w "
                f"net.ipv6.conf.{interface}.disable_ipv6=1"
            )
    except OSError:
        pass  # no IPv6 in this kernel
    return warnings


def with_tag(data: bytes, ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """The packet with the VLAN tag that the kernel took out of it, if it did."""
    for level, kind, value in ancillary:
        if level == SOL_PACKET and kind == PACKET_AUXDATA and len(value) >= AUXDATA.size:
            status, _, _, _, _, tci, tpid = AUXDATA.unpack_from(value)
            if status & TP_STATUS_VLAN_VALID:
                ether_type = tpid if status & TP_STATUS_VLAN_TPID_VALID else 0x8100
                return data[:12] + struct.pack("!HH", ether_type, tci) + data[12:]
    return data


def receive(port: InterfacePort) -> bytes | None:
    """The next packet that waits, with its VLAN tag; None: none waits, or the interface went down."""
    try:
        size, ancillary, _, _ = port.socket.recvmsg_into([port.buffer], 64)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in (errno.ENETDOWN, errno.ENXIO, errno.ENODEV, errno.EINTR):
            return None
        raise
    return with_tag(port.buffer[:size].tobytes(), ancillary)


def room_for(path: Path) -> None:
    """Make the folder for captures. Raises P4Error."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise P4Error(f"{path}: can't be made: {os.strerror(error.errno or 0)}") from None
