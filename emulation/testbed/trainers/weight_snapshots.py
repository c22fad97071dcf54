"""A model's weights as they were at several times, for evaluations that nobody waits for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from emulation.workloads.workload import RankWorkload


class WeightSnapshots:
    """A model's weights at several times, in a file without a name."""

    def __init__(self, workload: RankWorkload) -> None:
        self._arrays = [parameter.detach().numpy() for parameter in workload.model.parameters()]
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._times: list[tuple[int, int]] = []

    def keep(self, iteration: int, time_ns: int) -> None:
        for array in self._arrays:
            self._file.write(array.data)
        self._times.append((iteration, time_ns))

    def restore_each(self) -> Iterator[tuple[int, int]]:
        """(iteration, time) of each, while it is in the model."""
        self._file.seek(0)
        for snapshot in self._times:
            for array in self._arrays:
                assert self._file.readinto(array.data) == array.nbytes
            yield snapshot
        self._file.close()
