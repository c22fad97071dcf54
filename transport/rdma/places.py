"""The RDMA link's part of a job (R1 to R3): MTU and places of slot versions."""

from switchagg.job import JobConfig
from switchagg.join import QueuePairEnd
from switchagg.wire import HEADER_BYTES, frame_bytes
from transport.links.link_kinds import LINKS

PACKETS_DEFAULT = 16
"""Packets of a message, by default: at MTU 1024 a message is 16 kB, which a switch answers while the next is sent."""

PACKETS_MAX = 128


def elements_for(mtu: int) -> int:
    """E of a job whose frames fill this path MTU (R1): 251 for 1024 bytes, 1019 for 4096."""
    return (mtu - HEADER_BYTES) // 4


def mtu_for(elements: int) -> int:
    """The path MTU that frames of E values fill (R1). Raises JobError where there is none."""
    LINKS["rdma"].check_elements(elements)
    return frame_bytes(elements)


def first_places(job: JobConfig) -> list[int]:
    """The first place of each stream, and behind them the number of places (R2)."""
    places = [0]
    for stream in job.streams:
        places.append(places[-1] + 2 * stream.window_slots)
    return places


def switch_ends(job: JobConfig) -> list[QueuePairEnd]:
    """The switch's ends of the job's queue pairs, by rank (R3): they follow from job_id and generation."""
    return [
        QueuePairEnd(0x800000 | rank << 16 | job.job_id, psn=0, rkey=job.generation, base=0)
        for rank in range(job.workers)
    ]
