"""Chunk frames of a job as RDMA messages, and completions as frames (R1, R2, R7). The code is pure."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from switchagg.job import JobConfig
from switchagg.wire import FLAG_VERSION, Bundle, headers
from transport.rdma.places import first_places, mtu_for


class FrameRun(NamedTuple):
    """Consecutive rows of a bundle that make one message: so many frames, at consecutive places from `place` on."""

    row: int
    frames: int
    place: int


class Grouping:
    """Groups the frames of one job, at most `packets` to a message. Raises JobError if they fill no MTU."""

    def __init__(self, job: JobConfig, packets: int) -> None:
        self.mtu = mtu_for(job.elements)
        self._packets = packets
        places = first_places(job)
        self.places = places[-1]
        """Slot versions of the job."""
        windows = np.array([stream.window_slots for stream in job.streams], np.int64)
        firsts = np.array([stream.first_slot for stream in job.streams], np.int64)
        self._base: NDArray[np.int64] = np.array(places[:-1], np.int64) - firsts
        self._windows: NDArray[np.int64] = windows

    def runs(self, frames: Bundle) -> list[FrameRun]:
        """The messages for the frames of a bundle (m, mtu) as the job's own endpoint made them, in order."""
        if not len(frames):
            return []
        fields = headers(frames)
        stream = fields["stream"].astype(np.int64)
        version = (fields["kind"] & FLAG_VERSION) != 0
        place = self._base[stream] + fields["slot"] + version * self._windows[stream]
        ends = np.flatnonzero((np.diff(place) != 1) | (np.diff(stream) != 0)) + 1
        runs = []
        begin = 0
        for end in [*ends.tolist(), len(frames)]:
            for row in range(begin, end, self._packets):
                runs.append(FrameRun(row, min(self._packets, end - row), int(place[row])))
            begin = end
        return runs

    def frames_at(self, place: int, size_bytes: int) -> int:
        """How many frames a completion with this immediate and length brings; 0: it can be none of the job's (R7)."""
        frames, rest = divmod(size_bytes, self.mtu)
        return frames if not rest and place >= 0 and place + frames <= self.places else 0
