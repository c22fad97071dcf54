"""A switch with a controller, such as `switchagg switch` anywhere: a test's jobs join in the name of each rank."""

import secrets
import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as NoAnswer

from switchagg.aggregator import SlotView
from switchagg.errors import JobError, SwitchaggError
from switchagg.job import Address, JobConfig
from switchagg.join import JobTerms, Join
from transport.control import control_messages
from transport.control.control_client import ControlClient
from transport.control.snapshots import SLOTS_NS
from transport.links.addresses import parse_endpoint
from transport.switch.daemon_options import DATA_PORT
from transport.testing.switches import SwitchUnderTest

JOIN_S = 10.0
"""How long a join waits for room, and for an answer."""

ANSWER_S = 5.0


class JoinedSwitch(SwitchUnderTest):
    """The switch at a control address, "tcp://host:port". Ids, generations and slots of jobs are its controller's,
    whatever the test requests: `Job.config` has them. A worker's address is one that the switch reaches (C15).

    Counters and slots are those that a member sees (C14): a job's slots once a second, so `seen` waits for news.
    Raises JobError for an address that is none.
    """

    def __init__(self, control: str) -> None:
        super().__init__()
        self.control = control
        self.address = (parse_endpoint(control)[0], DATA_PORT)  # until a job is admitted, which says it
        self._members: dict[int, tuple[str, list[ControlClient]]] = {}
        self._news_s: dict[int, float] = {}

    @property
    def title(self) -> str:
        return self.control

    def admit(
        self, job: JobConfig, addresses: Sequence[Address], parent: tuple[Address, int] | None = None
    ) -> JobConfig:
        if parent is not None:
            raise JobError("a switch with a controller is below another if it was started so: use Switch")
        self.evict(job.job_id)
        name = f"packet-test-{secrets.token_hex(6)}"
        clients = [self._client(name, job, rank, address) for rank, address in enumerate(addresses)]
        try:
            for client in clients:
                client.start()
            answer, *_ = [client.admitted.result(2 * JOIN_S) for client in clients]
        except BaseException:
            self._part(clients)
            raise
        config = answer.config()
        self.address = (answer.host or self.address[0], answer.port)
        self._members[config.job_id] = name, clients
        self._jobs[config.job_id] = config
        self.log.append(f"job {config.job_id} generation {config.generation} admitted by {self.control} as {name}")
        return config

    def evict(self, job_id: int) -> None:
        self._jobs.pop(job_id, None)
        self._news_s.pop(job_id, None)
        if (member := self._members.pop(job_id, None)) is not None:
            self._part(member[1])

    def counters(self) -> dict[str, int]:
        return self._ask().data_counters if self._members else {}

    def seen(self, slot: int, version: int) -> SlotView | None:
        owner = next((job_id for job_id, job in self._jobs.items() if job.slots[0] <= slot < job.slots[1]), None)
        if owner is None:
            raise KeyError(slot)
        time.sleep(max(0.0, self._news_s.get(owner, 0.0) - time.monotonic()))
        answer = self._ask(owner)
        self._news_s[owner] = time.monotonic() + SLOTS_NS / 1e9
        views = (view for job in answer.jobs for view in job.slots if (view.slot, view.version) == (slot, version))
        view = next(views, None)
        return None if view is None else SlotView(view.chunk, tuple(view.ranks))

    def _client(self, name: str, job: JobConfig, rank: int, address: Address) -> ControlClient:
        join = Join(
            job=name,
            workers=job.workers,
            rank=rank,
            address=address,
            incarnation=secrets.randbits(63),
            timeout_ns=round(JOIN_S * 1e9),
            **vars(JobTerms.of(job)),
        )
        return ControlClient(self.control, join, lambda departed: None, self._on_end, dict)

    def _on_end(self, dead: list[control_messages.RankAddress], reason: str) -> None:
        self.log.append(f"the switch ended a job: {reason}")

    def _ask(self, job_id: int | None = None) -> control_messages.StatusAnswer:
        """The status, with the slots of this job; None: without slots, as any job's member."""
        name, clients = self._members[next(iter(self._members)) if job_id is None else job_id]
        try:
            return clients[0].query(None if job_id is None else name).result(ANSWER_S)
        except NoAnswer:
            raise SwitchaggError(f"no answer from switch {self.control} within {ANSWER_S:g} s") from None

    def _part(self, clients: Sequence[ControlClient]) -> None:
        end_s = time.monotonic() + ANSWER_S
        for client in clients:
            client.leave([], "the test has ended", max(0.0, end_s - time.monotonic()))
        for client in clients:
            client.close()
