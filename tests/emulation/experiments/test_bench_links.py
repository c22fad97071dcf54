"""The benchmark of links: tables, the ends of a link, and one real pair of namespaces."""

import threading
from typing import Any

import pytest

from emulation.scenario.errors import RunFailed
from tests.transport.contracts.meshes import free_addresses
from tools.bench import one_way as links
from tools.bench.link_end import EndPlace, LinkExecutor, OpenCandidate, opened
from tools.bench.plain_zeromq import MODES


def row(name: str, gbps: float, size: int = 1 << 20) -> dict[str, Any]:
    return links._row(name, size, [gbps / 8e-9] * 3, [1000.0])


def write(kind: str, mtu: int, gbps: float) -> dict[str, Any]:
    spread = {"median": gbps, "low": gbps - 1, "high": gbps + 1}
    return {"kind": kind, "mtu": mtu, "message_bytes": 10**6, "rdma_gbps": spread, "udp_gbps": spread, "share": 1.0}


PART = {
    "rows": [
        row("zeromq", 18.0),
        row("plain dealer copy", 9.0),
        row("plain push no-copy", 19.0),
        row("plain push no-copy bounded", 30.0),
        row("zeromq", 1.0, 1024),
        row("plain push copy", 2.0, 1024),
    ],
    "writes": [write("RC", 1024, 4.0), write("RC", 4096, 6.0), write("UC", 1024, 4.5)],
    "failures": {},
}


def test_the_tables_say_what_the_share_is_of() -> None:
    lines = links.lines(PART)
    assert lines[1].split()[-2:] == ["60", "%"]
    assert lines[1].split()[:4] == ["zeromq", "1048576", "18.00", "18.00"]
    assert any(line.startswith("RDMA WRITE UC, path MTU 1024") for line in lines)


@pytest.mark.parametrize(
    "contender", [*(f"plain {way}" for way in MODES), "plain dealer no-copy bounded", "zeromq", "tcp"]
)
def test_all_messages_arrive_at_both_ends(contender: str) -> None:
    (address,) = free_addresses(1)
    ends: list[Any] = [None, None]

    def open_one(member: int) -> None:
        addresses = [("127.0.0.2" if place == 0 else "127.0.0.1", address[1]) for place in (0, 1)]
        ends[member] = opened(contender, member, addresses)

    threads = [threading.Thread(target=open_one, args=(member,)) for member in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    try:
        for size, count in ((1000, 300), (100_000, 40)):
            sender = threading.Thread(target=ends[0].send, args=(memoryview(bytes(size)), count))
            sender.start()
            assert ends[1].receive(size, count) > 0
            sender.join(30)
            assert not sender.is_alive()
    finally:
        for end in ends:
            end.close()


def test_an_unknown_candidate_is_refused() -> None:
    end = LinkExecutor(EndPlace(0, ("127.0.0.1", "127.0.0.1"), 10))
    with pytest.raises(Exception, match="pigeon"):
        end.carry_out(OpenCandidate("pigeon", 1))


@pytest.mark.system
def test_a_pair_of_namespaces_is_measured_and_leaves_nothing(requires_root_namespaces: None) -> None:
    if reason := links.missing():
        pytest.skip(reason)
    with links.VethPair() as pair, links.EndpointPair(pair, 1000) as ends:
        ends.ask(OpenCandidate("plain push copy", links.PORT))
        speed, cpu_ns = links._run(ends, "plain push copy", 1000, 1000)
        assert speed > 0
        assert cpu_ns > 0
        with pytest.raises(RunFailed, match="pigeon"):
            ends.ask(OpenCandidate("pigeon", links.PORT + 1))
