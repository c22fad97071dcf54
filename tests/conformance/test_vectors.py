"""Golden packets (tests/vectors/*.stf, format in its README) on every data plane: P6, S1 to S8 and H2 to H5."""

from pathlib import Path

import numpy as np
import pytest
from dataplane_names import IN_PROCESS

from switchagg.aggregator import Parent
from switchagg.dataplane.contract import DataPlane
from switchagg.dataplane.table import DATAPLANES
from switchagg.errors import JobError
from switchagg.job import JobConfig, StreamConfig

VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("*.stf"))


def runs(vector: Path, dataplane: str) -> bool:
    """Whether a data plane has the rule of a vector: not all can be below another switch, or have partial sums."""
    kind, text = DATAPLANES[dataplane], vector.read_text()
    return (kind.leaf or " parent=" not in text) and (kind.partial or " partial=" not in text)


def job_of(words: list[str]) -> tuple[JobConfig, list[int], Parent | None]:
    fields = dict(word.split("=") for word in words)
    streams = tuple(StreamConfig(*map(int, part.split("+"))) for part in fields["streams"].split(","))
    job = JobConfig(
        job_id=int(fields["id"]),
        generation=int(fields["generation"]),
        workers=int(fields["workers"]),
        elements=int(fields["elements"]),
        streams=streams,
        **dict(zip(("backups", "close_after_ns"), map(int, fields.get("partial", "0,0").split(",")), strict=True)),
    )
    parent = Parent(*map(int, fields["parent"].split(","))) if "parent" in fields else None
    return job, [int(port) for port in fields["ports"].split(",")], parent


class Runner:
    """Runs the directives of one vector against one data plane."""

    def __init__(self, plane: str) -> None:
        self.name = plane
        self.plane: DataPlane
        self.sent: list[tuple[int, str]] = []

    def run(self, text: str) -> int:
        """Returns the number of packets; raises AssertionError with the line's number."""
        packets = 0
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if words[0] != "expect":
                assert not self.sent, f"line {number}: not expected: {self.sent}"
            packets += words[0] == "packet"
            getattr(self, f"do_{words[0]}")(f"line {number}: {line}", words[1:])
        assert not self.sent, f"end: not expected: {self.sent}"
        return packets

    def do_switch(self, _: str, words: list[str]) -> None:
        self.plane = DATAPLANES[self.name](int(words[0]), int(words[1]))

    def do_job(self, _: str, words: list[str]) -> None:
        self.plane.admit(*job_of(words))

    def do_refuse(self, _: str, words: list[str]) -> None:
        with pytest.raises(JobError):
            self.plane.admit(*job_of(words))

    def do_evict(self, _: str, words: list[str]) -> None:
        self.plane.evict(int(words[0]))

    def do_packet(self, _: str, words: list[str]) -> None:
        frame = np.frombuffer(bytes.fromhex("".join(words[1:])), np.uint8)[np.newaxis, :]
        for output in self.plane.process(frame, int(words[0])):
            self.sent += [(port, row.tobytes().hex()) for row in output.bundle for port in output.ports]

    def do_expect(self, line: str, words: list[str]) -> None:
        index = next((i for i, (port, _) in enumerate(self.sent) if port == int(words[0])), None)
        assert index is not None, f"{line}: nothing was sent there"
        _, sent = self.sent.pop(index)
        pattern = "".join(words[1:])
        assert len(sent) == len(pattern), line
        assert all(p in ("*", s) for p, s in zip(pattern, sent, strict=True)), f"{line}\nsent {sent}"

    def do_seen(self, line: str, words: list[str]) -> None:
        view = self.plane.seen(int(words[0]), int(words[1]))
        ranks = () if words[3] == "-" else tuple(map(int, words[3].split(",")))
        assert (view.chunk, view.ranks) == (int(words[2]), ranks), line

    def do_counter(self, line: str, words: list[str]) -> None:
        assert self.plane.counters.get(words[0], 0) == int(words[1]), line


@pytest.mark.parametrize(
    ("vector", "dataplane"),
    [
        pytest.param(vector, name, id=f"{vector.stem}-{name}")
        for vector in VECTORS
        for name in IN_PROCESS
        if runs(vector, name)
    ],
)
def test_vector(vector: Path, dataplane: str) -> None:
    runner = Runner(dataplane)
    packets = runner.run(vector.read_text())
    assert packets == sum(runner.plane.counters.values())  # every packet is counted exactly once


def test_a_wrong_vector_fails() -> None:
    text = (VECTORS[0].parent / "s5_broadcast.stf").read_text()
    for wrong in (
        text.replace("00000008 ffffffff", "00000009 ffffffff"),
        text.replace("counter broadcast 1", "counter broadcast 2"),
        text.replace("seen 0 0 0 0,1", "seen 0 0 0 0"),
        "\n".join(line for line in text.splitlines() if not line.startswith("expect 1")),
    ):
        with pytest.raises(AssertionError):
            Runner("reference").run(wrong)
