"""HopSecrets: a control plane's half of authenticated hops (A1, A2): which jobs have them, and their secrets."""

import secrets

from switchagg.errors import JobError
from switchagg.job import JobConfig
from switchagg.join import ROOT, Join
from switchagg.membership import JobAdmitted
from transport.links.hop_tags import SECRET_BYTES, HopKeys, secret_of_switch

ON, OFF = "on", "off"


class HopSecrets:
    """The secrets of the jobs that one controller has admitted.

    fault: why packets of its switch can have no tags, and what else protects them; "" if they can. encrypted: the link
    itself keeps out others (CURVE), so that packets need no tags.
    """

    def __init__(self, fault: str, *, encrypted: bool = False) -> None:
        self._fault, self._encrypted = fault, encrypted
        self._drawn: dict[tuple[int, int], bytes] = {}  # by job and generation

    def refusal(self, join: Join) -> str:
        """Why this switch can't serve the join, or ""."""
        if join.authenticate != ON or self._encrypted or not self._fault:
            return ""
        return f"authenticate {ON}: packets would have no tags: {self._fault}"

    def check(self, event: JobAdmitted) -> None:
        """Raise JobError for a job whose packets shall have tags, of which one of its switches can make none."""
        unable = [share.offer for share in event.shares if share.offer is not None and not share.offer.tags]
        if unable and event.terms.authenticate == ON:
            raise JobError(f"authenticate {ON}: {unable[0]} makes no tags of packets (A1)")

    def of(self, event: JobAdmitted, switch: str) -> bytes:
        """The secret of a switch and its children in a job; b"" if their packets have no tags. A generation has one."""
        if not self._tagged(event):
            return b""
        secret = self._drawn.setdefault(_key(event.job), secrets.token_bytes(SECRET_BYTES))
        return secret if switch == ROOT else secret_of_switch(secret, switch)

    def keys(self, event: JobAdmitted, switch: str, rank: int) -> bytes:
        """The keys of a child of a switch, by its rank there; b"" if their packets have no tags."""
        secret = self.of(event, switch)
        return bytes(HopKeys.of(secret, rank)) if secret else b""

    def protection(self, event: JobAdmitted) -> str:
        """What authenticates a job's packets, in words."""
        if self._encrypted:
            return "encrypted"
        return "a tag on each hop" if self._tagged(event) else "not authenticated"

    def _tagged(self, event: JobAdmitted) -> bool:
        unable = any(share.offer is not None and not share.offer.tags for share in event.shares)
        return not (event.terms.authenticate == OFF or self._encrypted or self._fault or unable)

    def forget(self, job: JobConfig) -> None:
        """The job has ended."""
        self._drawn.pop(_key(job), None)


def _key(job: JobConfig) -> tuple[int, int]:
    return job.job_id, job.generation
