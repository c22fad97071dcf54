"""WayBack: a rank away from the switch looks for one and joins it, in a thread of its own (L8).

Rank 0 chooses among the switches of the list: the first that answers, and another where not all ranks get into that
one, but none that has given wrong sums. The others learn its choice with the rows that ranks exchange.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from switchagg.errors import JobError
from switchagg.join import TIMEOUT_NS_MAX
from transport.control.control_client import query_status
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.keys import as_keys

logger = logging.getLogger(__name__)

REJOIN_S = 0.2
"""Pause after a refused join."""

PROBE_S = 0.5
"""How long a switch of the list may take to answer."""

LOOK_S = 0.05
"""Pause between two looks for a switch."""

STANDBY_S = 10.0
"""How long ranks wait for the others at a switch before they try the next of the list."""

NONE = -1

Join = Callable[[str, JoinOptions, threading.Event], SwitchSession]
"""join(switch, options, cancelled): a stay at a switch. Raises JobError."""


def answers(switch: str, keys: Any) -> bool:
    """Whether the switch at this control address answers now. keys: as of `JoinOptions`."""
    try:
        query_status(switch, timeout_s=PROBE_S, keys=as_keys(keys))
    except (JobError, OSError):
        return False
    return True


class WayBack:
    """One rank's. switches: control addresses. job: for the log. over: once it is set, nothing is joined any more."""

    def __init__(
        self, switches: Sequence[str], job: str, rank: int, options: JoinOptions, join: Join, over: threading.Event
    ) -> None:
        self._switches, self._job, self._rank, self._join, self._over = switches, job, rank, join, over
        patience_s = STANDBY_S if len(switches) > 1 else TIMEOUT_NS_MAX / 1e9
        self._options = replace(options, wait_for_slots=True, timeout_s=patience_s)
        self._cancelled = threading.Event()
        self._distrusted: set[int] = set()
        self._troubles: set[str] = set()
        self.target = 0
        """The switch of the list that all ranks shall join; NONE: none answers."""
        self.joined: SwitchSession | None = None
        """The stay at it, once all ranks are there."""

    def begin(self) -> None:
        """Look for a switch from now on, until one is joined."""
        threading.Thread(target=self._run, name=f"rejoin-{self._job}-{self._rank}", daemon=True).start()

    def follow(self, target: int) -> None:
        """Join this one, as rank 0 has chosen."""
        if target != self.target and self._rank:
            self.target = target
            self._cancelled.set()  # the join that is under way is at another switch

    def distrust(self) -> None:
        """Never go back to the present switch."""
        self._distrusted.add(self.target)

    def answers(self, switch: int) -> bool:
        """Whether this switch of the list answers now."""
        return answers(self._switches[switch], self._options.keys)

    def take(self) -> SwitchSession | None:
        """The stay that was joined, from now on the caller's."""
        joined, self.joined = self.joined, None
        return joined

    def close(self) -> None:
        """Leave the stay that nobody has taken; `over` is set."""
        self._cancelled.set()
        if (joined := self.take()) is not None:
            joined.close()

    def _run(self) -> None:
        candidate = max(0, self.target)
        while not self._over.is_set():
            self._cancelled.clear()
            if not self._rank:
                self.target = self._answering(candidate)
            if (target := self.target) == NONE or self._over.is_set():
                self._over.wait(LOOK_S)
                continue
            try:
                self.joined = self._join(self._switches[target], self._options, self._cancelled)
            except (JobError, OSError, TimeoutError) as error:
                self._tell(f"can't go back to the switch at {self._switches[target]}: {error}")
                candidate = target + 1
                self._over.wait(REJOIN_S)
                continue
            if self._over.is_set():
                self.close()
            return

    def _tell(self, trouble: str) -> None:
        """Rank 0 warns of each trouble once."""
        level = logging.INFO if self._rank or trouble in self._troubles else logging.WARNING
        self._troubles.add(trouble)
        logger.log(level, "switchagg: job %s %s", self._job, trouble)

    def _answering(self, candidate: int) -> int:
        """The first switch of the list, from this one on and around, that answers."""
        for place in range(candidate, candidate + len(self._switches)):
            switch = place % len(self._switches)
            if switch in self._distrusted:
                continue
            if self.answers(switch):
                return switch
        return NONE
