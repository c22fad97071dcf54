"""Loads the compiled core, libswitchagg.so, or gives the reason why it can't.

`SWITCHAGG_NATIVE=0` goes without it; `SWITCHAGG_NATIVE=/path/to/library.so` takes another build (sanitizers).
"""

import ctypes
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.native import headers, packet_terms

LIBRARY = Path(__file__).with_name("libswitchagg.so")

REMEDY = "run make native in a checkout, or install switchagg again"

_ALL_OUTCOMES = headers.names("sa_outcome", "SA_")
OUTCOMES = _ALL_OUTCOMES[: headers.SA_BASIC_OUTCOMES]
"""Counters of a data plane."""

LEAF_OUTCOMES = _ALL_OUTCOMES[headers.SA_BASIC_OUTCOMES : headers.SA_RESEND]
"""Further ones of a data plane below another switch (H2 to H5)."""

PARTIAL_OUTCOMES = _ALL_OUTCOMES[headers.SA_RESEND :]
"""Further ones of jobs with partial sums (Q1 to Q5)."""


def job_struct(job: JobConfig) -> Any:
    """The job as `struct sa_job`."""
    streams = (headers.struct("sa_stream") * len(job.streams))(
        *((stream.first_slot, stream.window_slots, stream.priority) for stream in job.streams)
    )
    return headers.struct("sa_job")(
        job_id=job.job_id,
        generation=job.generation,
        workers=job.workers,
        elements=job.elements,
        stream_count=len(streams),
        retry_limit=job.retry_limit,
        partial=job.partial,
        rto_initial_ns=job.rto_initial_ns,
        rto_min_ns=job.rto_min_ns,
        rto_max_ns=job.rto_max_ns,
        streams=ctypes.cast(streams, ctypes.c_void_p),
        **packet_terms.values(job),
    )


class CoreMissing(Exception):
    """There is no compiled core here; the text has the reason, and what to do."""


class CompiledCore(ctypes.CDLL):
    """The library. A function is declared, from the headers, when it is first used."""

    def __getattr__(self, name: str) -> Any:
        function = self[name]
        headers.declare(function, name)
        setattr(self, name, function)  # only now: another thread must not find it undeclared
        return function


class CoreHoldingGil(CompiledCore, ctypes.PyDLL):
    """The same of which no call gives the GIL away: for what takes less time than getting it back."""


@lru_cache(maxsize=1)
def load() -> CompiledCore:
    """The library. Raises CoreMissing."""
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
        library = CompiledCore(str(path))
        abi = library.sa_abi()
    except (OSError, AttributeError) as error:
        raise CoreMissing(f"{path} can't be loaded: {error}; {remedy}") from error
    if not (LIBRARY.parent / packet_terms.HEADER).exists():  # without it struct sa_job would lack the job's terms
        raise CoreMissing(f"{packet_terms.HEADER}, which the build writes, is missing; {REMEDY}")
    if abi != headers.SA_ABI:
        raise CoreMissing(f"{path.name} was built from other sources (ABI {abi}, not {headers.SA_ABI}); {remedy}")
    return library


@lru_cache(maxsize=1)
def load_holding_gil() -> CoreHoldingGil:
    """The library once more. Raises CoreMissing."""
    return CoreHoldingGil(None, handle=load()._handle)


def vectors() -> str:
    """The instruction set that the library's loops over values use on this processor. Raises CoreMissing."""
    answer: bytes = load().sa_vectors()
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
