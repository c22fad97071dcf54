"""Gathering: what the meeting of a job's members is on every link: who is missing and why, until when this member waits
for them, and why the job can't begin, which every member must learn before this one fails.
"""

import time
from collections.abc import Collection, Iterable, Sequence

from switchagg.errors import JobError
from transport.links.link import Address
from transport.meshes.hello import TELL_S, Hello, Meeting
from transport.meshes.mesh_handshake import unknown_senders_text

LEFT_S = 1.0
"""A member that came and left again for so long has found something wrong."""


def address_text(address: Address) -> str:
    """An address as texts have it."""
    return f"{address[0]}:{address[1]}"


class Gathering:
    """Base of the gatherings. A link adds whom it reaches (`_reached`), how it informs one of them (`_inform`), and
    what it knows about a member that is missing (`_trouble_of`).

    refusal: why this job can't begin, "" while it may. informed: members that know of it. until: the end of waiting.
    """

    def __init__(self, hello: Hello, addresses: Sequence[Address], terms: Meeting) -> None:
        self._hello, self._addresses, self._terms = hello, addresses, terms
        self._began = time.monotonic()
        self.until = self._began + terms.timeout_s
        self.refusal = self._to_others = ""
        self.informed: set[int] = set()
        self._trouble: dict[int, str] = {}  # the last, by member
        self._left: dict[int, float] = {}  # members that came and left, and since when
        self._reasons: dict[int, str] = {}  # why they did, where they said it

    @property
    def other_members(self) -> set[int]:
        """All members but this one."""
        return set(range(self._hello.members)) - {self._hello.member}

    def refuse(self, words: str, to_others: str, member: int) -> None:
        """The job can't begin, as this member knows, too: inform all that are reached, and for a while those that come.

        to_others: the words for them.
        """
        self.informed.add(member)
        if not self.refusal:
            self.refusal, self._to_others = words, to_others
            self.until = min(self.until, time.monotonic() + TELL_S)
            for reached in self._reached():
                self._inform(reached)

    def disagree(self, words: str, member: int) -> None:
        """This member has found what doesn't fit; that one, which has its hello, knows."""
        self.refuse(words, f"member {self._hello.member} reports: {words}", member)

    @property
    def is_refused(self) -> bool:
        """Whether the job can't begin, and all others know, or have had the time to learn it."""
        return bool(self.refusal) and (time.monotonic() >= self.until or self.informed >= self.other_members)

    def check_time(self, missing: Collection[int], unknown_senders: int) -> None:
        """Raise JobError once it is too late for a member that is missing, or one has left for long, or waiting is
        cancelled."""
        now, cancelled = time.monotonic(), self._terms.cancelled
        if any(now >= self._until_of(member) for member in missing):
            waited_s = max(self._terms.timeout_s, now - self._began)
            within = f" within {waited_s:.4g} s{unknown_senders_text(unknown_senders)}"
            raise self.error(self._missing_text(missing) + within)
        if cancelled is not None and cancelled.is_set():
            raise self.error(f"{self._missing_text(missing)}, and it waits no longer")
        for member, since in self._left.items():
            if now - since >= LEFT_S:
                why = f": {self._reasons[member]}" if self._reasons.get(member) else ""
                lacking = f"{self._missing_text(missing)}, and " if missing else ""
                raise self.error(f"{lacking}member {member} came and left again{why}")

    def error(self, words: str) -> JobError:
        """An error that names the job and this member."""
        return JobError(f"job {self._hello.job}, member {self._hello.member} of {self._hello.members}: {words}")

    def _missing_text(self, missing: Iterable[int]) -> str:
        troubles = {member: self._trouble_of(member) for member in missing}
        places = (
            f"member {member} at {address_text(self._addresses[member])}" + (f" ({trouble})" if trouble else "")
            for member, trouble in troubles.items()
        )
        return f"no connection with {', '.join(places)}"

    def _until_of(self, member: int) -> float:
        """When it is too late for a member that is missing."""
        return self.until

    def _reached(self) -> Iterable[int]:
        return ()

    def _inform(self, member: int) -> None:
        raise NotImplementedError

    def _trouble_of(self, member: int) -> str:
        return self._trouble.get(member, "")
