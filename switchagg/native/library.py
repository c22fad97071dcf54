"""Loads the compiled core, libswitchagg.so, or gives the reason why it can't.

`SWITCHAGG_NATIVE=0` goes without it; `SWITCHAGG_NATIVE=/path/to/library.so` takes another build (sanitizers).
"""

import ctypes
import os
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

from switchagg.errors import JobError
from switchagg.job import JobConfig, PacketTerms
from switchagg.native import packet_terms
from switchagg.native.packet_terms import width_of

ABI = 25
"""As SA_ABI in abi.h."""

LIBRARY = Path(__file__).with_name("libswitchagg.so")

REMEDY = "run make native in a checkout, or install switchagg again"

OUTCOMES = (
    "absorbed",
    "broadcast",
    "reply",
    "drop_duplicate",
    "drop_older",
    "drop_early",
    "drop_short",
    "drop_magic",
    "drop_wire_version",
    "drop_op",
    "drop_flags",
    "drop_length",
    "drop_result",
    "drop_job",
    "drop_generation",
    "drop_stream",
    "drop_slot",
    "drop_rank",
    "drop_port",
    "drop_owner",
    "drop_elements",
)
"""Counters of a data plane, in the order of `enum sa_outcome`."""

LEAF_OUTCOMES = (
    "up",
    "up_again",
    "drop_asked",
    "drop_parent_chunk",
    "drop_parent_early",
    "drop_parent_duplicate",
    "drop_route",
)
"""Further ones of a data plane below another switch (H2 to H5), in the order of `enum sa_outcome`."""

PARTIAL_OUTCOMES = ("resend", "abstained", "drop_late")
"""Further ones of jobs with partial sums (Q1 to Q5), in the order of `enum sa_outcome`."""

ENDPOINT_COUNTERS = (
    "sent",
    "retransmitted",
    "timeouts",
    "results",
    "duplicates",
    "drop_short",
    "drop_magic",
    "drop_wire_version",
    "drop_op",
    "drop_flags",
    "drop_length",
    "drop_job",
    "drop_generation",
    "drop_foreign",
    "predicted",
    "repeated",
    "marked",
)
"""Counters of an endpoint, in the order of `enum sa_endpoint_counter`."""


class NativeStream(ctypes.Structure):
    """`struct sa_stream`."""

    _fields_ = [("first_slot", ctypes.c_uint32), ("window", ctypes.c_uint32), ("priority", ctypes.c_int32)]


class NativeJob(ctypes.Structure):
    """`struct sa_job`; keeps its streams alive."""

    _fields_ = [
        ("job_id", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("elements", ctypes.c_uint32),
        ("stream_count", ctypes.c_uint32),
        ("retry_limit", ctypes.c_uint32),
        ("partial", ctypes.c_uint32),
        ("rto_initial_ns", ctypes.c_int64),
        ("rto_min_ns", ctypes.c_int64),
        ("rto_max_ns", ctypes.c_int64),
        ("streams", ctypes.POINTER(NativeStream)),
        *((term.name, ctypes.c_uint32 if width_of(term) == 32 else ctypes.c_int64) for term in fields(PacketTerms)),
    ]


def job_struct(job: JobConfig) -> NativeJob:
    """The job as C sees it."""
    streams = (NativeStream * len(job.streams))(
        *(NativeStream(s.first_slot, s.window_slots, s.priority) for s in job.streams)
    )
    return NativeJob(
        job.job_id,
        job.generation,
        job.workers,
        job.elements,
        len(job.streams),
        job.retry_limit,
        job.partial,
        job.rto_initial_ns,
        job.rto_min_ns,
        job.rto_max_ns,
        ctypes.cast(streams, ctypes.POINTER(NativeStream)),
        **packet_terms.values(job),
    )


class CoreMissing(Exception):
    """There is no compiled core here; the text has the reason, and what to do."""


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The library, its functions declared. Raises CoreMissing."""
    choice = os.environ.get("SWITCHAGG_NATIVE", "")
    if choice == "0":
        raise CoreMissing("SWITCHAGG_NATIVE=0 asks to go without it; unset it")
    path = Path(choice) if choice else LIBRARY
    remedy = "unset SWITCHAGG_NATIVE, or let it name a build of these sources" if choice else REMEDY
    if not path.exists():
        if choice:
            raise CoreMissing(f"SWITCHAGG_NATIVE names {choice}, which is not there; {remedy}")
        compiler = "install a C compiler (apt install gcc libc6-dev, or pip install ziglang)"
        raise CoreMissing(f"{path.name} was not built; {compiler}, then {remedy}")
    try:
        library = ctypes.CDLL(str(path))
        library.sa_abi.restype = ctypes.c_uint32
        abi = library.sa_abi()
    except (OSError, AttributeError) as error:
        raise CoreMissing(f"{path} can't be loaded: {error}; {remedy}") from error
    if abi != ABI:
        raise CoreMissing(f"{path.name} was built from other sources (ABI {abi}, not {ABI}); {remedy}")
    return library


def vectors() -> str:
    """The instruction set that the library's loops over values use on this processor. Raises CoreMissing."""
    library = load()
    library.sa_vectors.restype = ctypes.c_char_p
    answer: bytes = library.sa_vectors()
    return answer.decode()


def require(what: str) -> None:
    """Raise JobError, with how to get the compiled core, where there is none. what: needs it."""
    if reason := missing():
        raise JobError(f"{what} needs the compiled core: {reason}")


def missing() -> str:
    """Why there is no compiled core, with what to do; "" if there is one."""
    try:
        load()
    except CoreMissing as error:
        return str(error)
    return ""
