"""Multicast: one packet for all workers of a job, from which the kernel makes each worker's (BPF, xdp/copies.bpf.c).

The switch sends a result once to a group that stands for the job, 239.x, out of one interface; there a program copies
it for each worker, with its own addresses. So a result is copied into the kernel once, not once per worker, and workers
notice nothing: each gets a datagram addressed to itself, over its own port with its own shaping.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from switchagg.errors import SwitchaggError
from switchagg.native import bpf, headers
from switchagg.native.libbpf import libbpf, why

OBJECT = "copies.bpf.o"
TTL = 64
_ATTACH_TCX_EGRESS = 47
_Job = headers.struct("sa_copies_job")
_COMPLETE = 2  # a neighbour whose MAC address is known


class Multicast:
    """Copies what `descriptor`, a UDP socket over IPv4 bound to `port`, sends to groups of jobs, at `interface`.

    In the caller's network namespace, until `close` or the end of this process. Raises SwitchaggError.
    """

    def __init__(self, interface: str, descriptor: int, port: int) -> None:
        self.interface, self._port = interface, port
        index = bpf.interface_index(interface)
        self._object = bpf.BpfObject(OBJECT, values={"jobs": ctypes.sizeof(_Job)})
        try:
            self._jobs = self._object.map("jobs")
            program = self._object.program("sa_copy")
            attached = libbpf().bpf_link_create(program, index, _ATTACH_TCX_EGRESS, None)
            if attached < 0:
                raise SwitchaggError(f"{interface}: a program at its way out (tcx, Linux 6.6): {why(attached)}")
            self._link = bpf.BpfAttachment(attached)
            with socket.socket(fileno=os.dup(descriptor)) as shared:
                out = struct.pack("=4s4si", bytes(4), bytes(4), index)
                shared.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, out)
                shared.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, TTL)
                shared.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        except BaseException:
            self.close()
            raise

    def admit(self, job_id: int, addresses: Sequence[tuple[str, int]]) -> None:
        """Copy the results of a job for its workers, by rank. Raises SwitchaggError where one can't be reached so."""
        neighbours = _neighbours(self.interface)
        job = _Job(len(addresses), socket.htons(self._port))
        for rank, (host, port) in enumerate(addresses):
            if host not in neighbours:
                raise SwitchaggError(f"{host} is no neighbour at {self.interface} whose MAC address is known")
            job.members[rank] = tuple(neighbours[host]), socket.htons(port), bpf.packed_address(host)
        self._jobs.update(job_id, bytes(job))

    def evict(self, job_id: int) -> None:
        """Forget a job; again is allowed."""
        self._jobs.delete(job_id)

    def close(self) -> None:
        """Detach; again is allowed."""
        if link := getattr(self, "_link", None):
            link.close()
        self._object.close()


def _neighbours(interface: str) -> dict[str, bytes]:
    """IPv4 address -> MAC address, of the hosts behind an interface."""
    rows = (line.split() for line in Path("/proc/thread-self/net/arp").read_text(encoding="ascii").splitlines()[1:])
    return {
        row[0]: bytes.fromhex(row[3].replace(":", ""))
        for row in rows
        if row[5] == interface and int(row[2], 16) & _COMPLETE
    }
