"""The backend as a process group of torchft; import this module only where torchft is installed.

    manager = Manager(pg=ProcessGroupSwitchagg(timeout=timedelta(seconds=5)), ...)

torchft decides who the ranks are, and forms the group anew by `configure`. Methods, switch and codecs come from the
options, or the environment, as everywhere.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torchft.manager import Manager
from torchft.process_group import ProcessGroupWrapper
from torchft.work import _DummyWork

from transport.torch.backend import SwitchProcessGroup
from transport.torch.calls.work import SwitchWork
from transport.torch.rendezvous import SwitchOptions

logger = logging.getLogger(__name__)


class ProcessGroupSwitchagg(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may be missing where types are checked
    """timeout: of each call without one of its own, and of meeting. options: how each generation uses the switch;
    default: the environment's. quantized: the codec of sums within `quantizing`, such as `lanes8`; "": the options'.

    As with NCCL's group under torchft, an allreduce that fails raises nothing and leaves any values: `wait()` is False,
    and `errored()` says why, for which the manager drops the step: DDP of torchft 0.2 can't take an error within a
    backward pass. So does a generation that a manager forms, and that doesn't come about. All other calls raise.
    Raises DistBackendError for a codec that can't be used so.
    """

    def __init__(
        self, timeout: timedelta = timedelta(seconds=60), options: SwitchOptions | None = None, quantized: str = ""
    ) -> None:
        super().__init__(timeout)
        self._options = options or SwitchOptions.from_environment()
        self._quantized_options = _quantized(self._options, quantized) if quantized else self._options
        self._formed: SwitchProcessGroup | None = None  # it is formed again for each generation
        self._quantized: SwitchProcessGroup | None = None  # of this generation, from its first such sum on
        self._store: Any = None
        self._thread = threading.local()  # .quantizes
        self._aborted: Exception | None = None

    def getBackendName(self) -> str:
        return "torchft-switchagg"

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *place: Any, **more: Any) -> None:
        """Form a new generation. place, more: where in the quorum this is; without them it raises what forming raises,
        with them, as managers call it, `errored()` tells it."""
        try:
            super().configure(store_addr, replica_id, rank, world_size, *place, **more)
        except Exception as error:
            self._aborted = error
            if not (place or more):
                raise
            logger.warning("torchft: rank %d of %d: no generation began: %s", rank, world_size, error)

    def rank(self) -> int:
        """This rank's number in the present generation."""
        return int(self.parent.rank())

    def abort(self, errored: bool = True) -> None:
        """Fail what is pending; nothing works until the next generation. It waits for nothing."""
        if errored:
            self._aborted = RuntimeError("by this rank")
        for group in self._groups():
            group.abort()
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave, and end the threads."""
        groups, self._pg, self._formed, self._quantized = self._groups(), None, None, None
        for group in groups:
            group.shutdown()

    def errored(self) -> BaseException | None:
        """Why there must be a new generation; None while this one works."""
        cause = self._aborted or next((error for group in self._groups() if (error := group.errored())), None)
        return None if cause is None else RuntimeError(f"the process group was aborted: {cause}")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of later calls."""
        super().set_timeout(timeout)
        for group in self._groups():
            group.set_timeout(timeout)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        """Reduce tensors in place; it never raises for the network."""
        if self._pg is None and self._aborted is not None:
            return _QuietWork(SwitchWork.ended("allreduce", self._aborted), tensors)
        group = self._quantized_group() if getattr(self._thread, "quantizes", False) else self.parent
        return _QuietWork(group.allreduce(tensors, opts), tensors)

    @contextmanager
    def quantizing(self) -> Iterator[None]:
        """This thread's allreduces are summed by the codec `quantized`, or the options' own. Raises ValueError without
        either."""
        if not self._quantized_options.name.codec:
            raise ValueError("should_quantize: no codec is named: ProcessGroupSwitchagg(quantized='lanes8')")
        self._thread.quantizes = True
        try:
            yield
        finally:
            self._thread.quantizes = False

    def _groups(self) -> list[SwitchProcessGroup]:
        return [group for group in (self._formed, self._quantized) if group is not None]

    def _create_pg(self, store: Any, rank: int, world_size: int) -> SwitchProcessGroup:
        quantized, self._quantized, self._store = self._quantized, None, store
        if quantized is not None:
            threading.Thread(target=quantized.shutdown, name="switchagg-quantized-end", daemon=True).start()
        self._aborted = None
        if self._formed is None:
            self._formed = self._form(store, rank, world_size, self._options, "torchft")
        else:
            self._formed.form_again(store, rank, world_size, self._timeout.total_seconds())
        return self._formed

    def _quantized_group(self) -> SwitchProcessGroup:
        """The group that quantizes; at a generation's first such sum a collective of its ranks."""
        group: SwitchProcessGroup = self.parent
        if self._quantized_options is self._options:
            return group
        if self._quantized is None:
            store = PrefixStore("quantized", self._store)
            self._quantized = self._form(
                store, group.rank(), group.size(), self._quantized_options, "torchft quantized"
            )
        return self._quantized

    def _form(self, store: Any, rank: int, size: int, options: SwitchOptions, name: str) -> SwitchProcessGroup:
        group = SwitchProcessGroup(store, rank, size, self._timeout, options, name=name)
        try:
            group.connect()
        except Exception:
            group.shutdown()
            raise
        return group


class SwitchaggManager(Manager):  # type: ignore[misc]
    """torchft's Manager for a ProcessGroupSwitchagg. `should_quantize=True` sums by the group's codec, where torchft's
    own has kernels for CUDA alone; and its DDP goes on after an error that is known before a bucket is summed."""

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False, *args: Any, **kwargs: Any) -> dist.Work:
        """Sum as torchft's own manager does. Raises ValueError for should_quantize if the group has no codec."""
        group = self._pg
        if should_quantize and not isinstance(group, ProcessGroupSwitchagg):
            raise ValueError(
                f"should_quantize: codecs are those of a ProcessGroupSwitchagg, not {type(group).__name__}"
            )
        with group.quantizing() if should_quantize else nullcontext():
            work: dist.Work = super().allreduce(tensor, False, *args, **kwargs)
        if isinstance(work, _DummyWork):  # the hook of DDP takes it for a managed one
            work.future_._fut = work.future_
        return work


class _QuietWork(dist.Work):
    """A Work that ends without an error."""

    def __init__(self, work: dist.Work, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._tensors = work, tensors

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Whether the tensors hold the sums."""
        try:
            return self._work.wait(timeout or timedelta(0))
        except dist.DistBackendError:
            return False

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._work.get_future().then(lambda _: self._tensors)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def block_current_stream(self) -> None:
        self.wait()


def _quantized(options: SwitchOptions, codec: str) -> SwitchOptions:
    """The same with this codec. Raises DistBackendError in a line."""
    quantized = replace(options, method=str(replace(options.name, codec="")), link="", codec=codec)
    spec = quantized.name.spec
    if spec is None or spec.feedback or spec.warmup:
        raise dist.DistBackendError(
            f"quantized={codec!r}: torchft's sums have no names of parameters, so only a codec without memory can code "
            "them: leave +ef and warmup out"
        )
    return quantized
