"""A rank of a run against servers that keep the weights: `transport.torch.ps.PsOptimizer` instead of DDP.

A rank waits for nobody but the servers. So training time doesn't stand still for an evaluation, either: rank 0 keeps
the weights it has at the end of its iteration (a copy, which counts), and evaluates them when all is over. Then every
gradient has been applied, all ranks pull the servers' weights, and those are evaluated last.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from emulation.testbed.children import send_report
from emulation.testbed.trainers.ddp_trainer import Trainer, TrainingClock, rendezvous
from emulation.testbed.trainers.trainer_messages import (
    GROUP_JOB,
    GROUP_PORT,
    IterationReport,
    TrainerConfig,
    TransferTimes,
)
from emulation.testbed.trainers.weight_snapshots import WeightSnapshots
from emulation.workloads.workload import RankWorkload
from transport.contracts.group_contract import Array
from transport.group.ps_group import PsClient, PsOptions, open_ps_client
from transport.ps.config import PsConfig
from transport.torch.ps import PsOptimizer


class TimedClient:
    """A client that notes when each gradient left and weights came back. names: of the tensors, by key."""

    def __init__(self, client: PsClient, names: list[str]) -> None:
        self.client = client
        self.spans: list[TransferTimes] = []
        self.init, self.pull, self.close, self.pushes = client.init, client.pull, client.close, client.pushes
        self._names = names

    def push_pull(self, key: int, gradient: Array, weights: Array, *, priority: int = 0) -> Future[Array]:
        """As PsClient's."""
        span = TransferTimes(gradient.nbytes, time.monotonic_ns(), name=self._names[key], priority=priority)
        self.spans.append(span)
        noted: Future[Array] = Future()

        def back(done: Future[Array]) -> None:
            span.end_ns = time.monotonic_ns()
            failure = done.exception()
            if failure is None:
                noted.set_result(weights)
            else:
                noted.set_exception(failure)

        self.client.push_pull(key, gradient, weights, priority=priority).add_done_callback(back)
        return noted


class PsTrainer(Trainer):
    """See the module. The process group (Gloo) is for the rendezvous and the start."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config)
        self._client: TimedClient
        self._optimizer: PsOptimizer

    def _attach(self, workload: RankWorkload) -> None:
        rendezvous(self.config, "gloo")
        config = self.config
        options = {**config.scenario.ps.options, **workload.ps_options, "codec": self.name.codec}
        client = open_ps_client(
            self.name.link,
            config.rank,
            [(address, GROUP_PORT) for address in config.addresses],
            [(address, GROUP_PORT) for address in config.servers],
            config=PsConfig(config.workers, call_timeout_s=config.timeout_s, **options),
            job=GROUP_JOB,
            options=PsOptions(config.timeout_s),
        )
        self._client = TimedClient(client, [name for name, _ in workload.model.named_parameters()])
        self._optimizer = PsOptimizer(workload.model.parameters(), self._client)
        self._snapshots = WeightSnapshots(workload)

    def _detach(self) -> None:
        self._optimizer.close()

    def _counters(self) -> dict[str, int]:
        return dict(self._client.client.counters)

    def _notes(self) -> list[str]:
        return [
            *super()._notes(),
            "The servers keep the weights: a rank's gradient is a step by itself, and the rank goes on with the "
            "weights that answer it. Nobody waits for an evaluation; what is evaluated meanwhile are rank 0's weights.",
        ]

    def _iterate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        spans = self._client.spans = []
        start_ns = time.monotonic_ns()
        loss = self._forward(workload, workload.model, iteration)
        forward_end_ns = time.monotonic_ns()
        loss.backward()
        self._pace.backward_done()
        backward_end_ns = time.monotonic_ns()
        self._optimizer.step()
        end_ns = time.monotonic_ns()
        self._optimizer.zero_grad()
        back_ns = max(backward_end_ns, *(span.end_ns for span in spans))
        send_report(
            IterationReport.of(
                (start_ns, forward_end_ns, backward_end_ns, end_ns),
                spans,
                back_ns - backward_end_ns,
                spans[-1],
                iteration=iteration,
                start_ns=clock.at(start_ns),
                optimizer_ns=end_ns - back_ns,
                loss=loss.item(),
                retransmissions=self._counters().get("retransmitted", 0),
            )
        )

    def _without_exchange(self, model: Any) -> Any:
        return model

    def _evaluate(self, workload: RankWorkload, iteration: int, clock: TrainingClock) -> None:
        """Keeps the weights for an evaluation; after the last iteration, evaluates all of them."""
        assert self._snapshots is not None
        last = iteration + 1 == self.config.scenario.workload.iterations
        if not last:
            if self.config.rank == 0:
                self._snapshots.keep(iteration, clock.at(time.monotonic_ns()))
            return
        self._client.client.barrier().result()
        end_ns = clock.at(time.monotonic_ns())
        if self.config.rank == 0:
            for earlier, time_ns in self._snapshots.restore_each():
                self._report_score(workload, earlier, time_ns)
        self._optimizer.pull()
        if self.config.rank == 0:
            self._report_score(workload, iteration, end_ns)
