"""The backend as a process group of torchft; import this module only where torchft is installed.

    manager = Manager(pg=ProcessGroupSwitchagg(timeout=timedelta(seconds=5)), ...)

torchft decides who the ranks are, and forms the group anew by `configure`, or in later versions `reconfigure`. Methods,
switch and codecs come from the options, or the environment, as everywhere.
"""

from datetime import timedelta
from typing import Any

from torchft.process_group import ProcessGroupWrapper

from transport.torch.backend import SwitchProcessGroup
from transport.torch.rendezvous import SwitchOptions


class ProcessGroupSwitchagg(ProcessGroupWrapper):  # type: ignore[misc]  # torchft may be missing where types are checked
    """timeout: of each call without one of its own, and of meeting. options: how each generation uses the switch;
    default: the environment's."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: SwitchOptions | None = None) -> None:
        super().__init__(timeout)
        self._pg: SwitchProcessGroup | None
        self._options = options or SwitchOptions.from_environment()
        self._aborted: Exception | None = None

    def getBackendName(self) -> str:
        return "torchft-switchagg"

    def abort(self, errored: bool = True) -> None:
        """Fail what is pending; nothing works until the next generation. It waits for nothing."""
        if errored:
            self._aborted = RuntimeError("the process group was aborted")
        super().abort(errored)

    def shutdown(self) -> None:
        """Leave, and end the threads."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def errored(self) -> BaseException | None:
        """Why there must be a new generation; None while this one works."""
        return self._aborted or (None if self._pg is None else self._pg.errored())

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of later calls."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> SwitchProcessGroup:
        group = SwitchProcessGroup(store, rank, world_size, self._timeout, self._options, name="torchft")
        group.connect()
        self._aborted = None
        return group
