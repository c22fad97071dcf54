"""The two providers of verbs by name, and what callers that drive a context themselves need."""

import os
from dataclasses import dataclass, field
from typing import Protocol

from switchagg.errors import JobError
from switchagg.option_syntax import choices
from transport.links.link import Address
from transport.rdma.places import PACKETS_DEFAULT
from transport.rdma.verbs import Context

PROVIDERS = ("soft", "verbs")
"""soft: RoCEv2 in user space, over UDP, everywhere. verbs: an RDMA NIC, through pyverbs."""

VARIABLE = "SWITCHAGG_RDMA_PROVIDER"


def default_provider() -> str:
    """The environment's choice, else "soft"."""
    return os.environ.get(VARIABLE) or "soft"


@dataclass(frozen=True)
class RdmaOptions:
    """How a worker joins a switch over RDMA. provider: "soft" or "verbs" (an RDMA NIC); default: what
    SWITCHAGG_RDMA_PROVIDER says, else soft. packets: most of a message; more cost less per packet, and lose more with
    one. port: of the soft provider; None: RoCEv2's 4791, or any where another worker at this address has that.
    """

    provider: str = field(default_factory=default_provider)
    packets: int = PACKETS_DEFAULT
    port: int | None = None


class DrivenContext(Context, Protocol):
    """A context without a thread of its own: what was posted moves while someone is in `progress`, or a NIC does it."""

    @property
    def address(self) -> Address:
        """Where peers find it."""

    def progress(self, timeout_s: float, gather_s: float = 0.0) -> None:
        """Until there is a completion not polled yet, `wake`, or the timeout. gather_s: for how long after the first
        completion more of them are waited for, where software moves packets."""

    def wake(self) -> None:
        """End the present or else the next `progress`. Any thread; after `close` it does nothing."""


def open_context(provider: str, host: str, port: int, *, thread: bool = False) -> DrivenContext:
    """A device at this address of this host. port: of the soft provider alone, 0 for a free one. thread: have packets
    move in the background, so that nothing need call `progress`.

    Raises JobError for a provider or device that doesn't exist, with what to do.
    """
    if provider == "soft":
        from transport.rdma.soft import open as open_soft

        return open_soft(host, port=port, thread=thread)
    if provider == "verbs":
        from transport.rdma.hardware import open as open_hardware

        return open_hardware(host)
    raise JobError(f"RDMA provider {provider!r} is unknown{choices(provider, PROVIDERS)}")
