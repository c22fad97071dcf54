"""Trains one rank of a scenario in real time and reports, line by line, what each iteration took.

Runs as a process of its own, in the network namespace of its worker if it has one:

    python -m emulation.testbed.trainers.trainer rank-0.json

Reports (trainer_messages.py) go to stdout, one JSON object per line, flushed: first `started`, then per iteration
`iteration`, on rank 0 `evaluated`, and in the end `finished` or `failed` (then one line on stderr too, and exit status
1). A configuration that can't be read ends it with status 2. All times are nanoseconds, as integers.

The training loop is the usual one: DistributedDataParallel, backward, step. All methods run the same code; only the
process group differs (`emulation.testbed.trainers.ddp_trainer`), and with a training method what steps exchange
(`emulation.testbed.trainers.synchronised_trainer`). With a schedule (`ring+p3`) there is no DDP
(`emulation.testbed.trainers.scheduled_trainer`), and none against servers that keep the weights (`[ps] mode = "ssp"`:
`emulation.testbed.trainers.ps_trainer`).

Time. Training time stands still while rank 0 evaluates: the others wait at a barrier, and no clock and no iteration
counts that; with servers that keep weights nobody waits, and rank 0 evaluates in the end. Computing runs at a lower
priority than the threads that carry packets, on all ranks and for all methods alike: ranks share the cores of one
machine here, and a network that waits for another rank's convolution would be slower than the links that it represents.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch.distributed as dist

from emulation.scenario.workload_kinds import DDP, FSDP, TP, WORKLOADS
from emulation.testbed.children import send_report
from emulation.testbed.trainers.ddp_trainer import Trainer
from emulation.testbed.trainers.fsdp_trainer import FsdpTrainer
from emulation.testbed.trainers.ps_trainer import PsTrainer
from emulation.testbed.trainers.synchronised_trainer import SynchronisedTrainer
from emulation.testbed.trainers.tensor_trainer import TensorTrainer
from emulation.testbed.trainers.trainer_messages import TrainerConfig, TrainingFailed

EXIT_SECONDS = 10  # after `finished`: leaving the process group may not take longer
MESSAGE_LENGTH_MAX = 400
TRAINERS: dict[str, type[Trainer]] = {DDP: Trainer, FSDP: FsdpTrainer, TP: TensorTrainer}
"""By how ranks share a model."""


def one_line(error: BaseException) -> str:
    """The first line of an exception: torch appends its C++ stack."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip()[:MESSAGE_LENGTH_MAX]


def guarded(config: TrainerConfig, run: Callable[[Trainer], None]) -> None:
    """Runs a trainer and ends the process: status 0, or 1 after one line on stderr and a `failed` record."""
    trainer = _kind(config)(config)
    try:
        run(trainer)
    except Exception as error:
        where = "at its start" if trainer.iteration is None else f"in iteration {trainer.iteration}"
        message = one_line(error)
        send_report(TrainingFailed(message, trainer.iteration))
        sys.stderr.write(f"trainer: rank {config.rank} ({config.method}) failed {where}: {message}\n")
        sys.stderr.flush()
        # At once and without clean-up: taking a process group down waits for ranks that may have died. The kernel
        # closes
        # our sockets, and that is how the others learn of it.
        os._exit(1)
    signal.alarm(EXIT_SECONDS)  # if this hangs, the kernel ends us
    dist.destroy_process_group()
    # Taking the interpreter and torch down takes half a second of processor time, and many at our niceness.
    os._exit(0)


def _kind(config: TrainerConfig) -> type[Trainer]:
    if config.name.schedule:
        from emulation.testbed.trainers.scheduled_trainer import ScheduledTrainer  # which loads virtual time

        return ScheduledTrainer
    if config.scenario.asynchronous(config.name):
        return PsTrainer
    if config.scenario.workload.synchronisation:
        return SynchronisedTrainer
    return TRAINERS[WORKLOADS[config.scenario.workload.name].parallel]


def read_config(path: Path) -> TrainerConfig:
    """Raises ValueError with one line that names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainerConfig)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from error


def prepare() -> None:
    """Loads, before ranks are forked, what each of them would load."""
    import torch._dynamo  # noqa: F401  # by DistributedDataParallel

    import transport.torch.backend
    import transport.torch.process_group
    import transport.worker.session  # noqa: F401


def run_rank(path: str) -> int:
    """The whole life of a rank. path: of its configuration."""
    # Python's own handlers wait for the interpreter, which may be waiting for the network: end at once instead.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        config = read_config(Path(path))
    except ValueError as error:
        sys.stderr.write(f"trainer: {error}\n")
        return 2
    guarded(config, Trainer.run)
    return 0


if __name__ == "__main__":
    sys.exit(run_rank(sys.argv[1]))
