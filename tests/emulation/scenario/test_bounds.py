"""Bytes on the wire and bounds: exact, and held to packets that were really sent."""

import dataclasses
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from emulation.scenario.bounds import (
    NetworkParameters,
    algbw_bound,
    bound,
    bound_together,
    elements_of,
    elements_that_fit,
    framing_efficiency,
    payload_limit,
    payload_share,
    wire_bytes_per_server,
)
from emulation.sim.host_costs import HostCosts
from emulation.sim.network.simulated_link import LinkConfig
from emulation.sim.network.simulation import SimulationConfig
from emulation.sim.network.timing import time_allreduce
from switchagg.codecs import ARRAY_CODECS, ArrayCodec
from switchagg.codecs.array_codec import Reduction
from switchagg.description import Kind
from switchagg.native import library
from transport.group.method_name import parse, traffic
from transport.links.link_kinds import LINKS
from transport.rdma import soft
from transport.rdma.verbs import AccessFlags, Opcode, QPAttributes, QPEnd, QPType, SendRequest


@pytest.mark.parametrize(
    ("method", "mtu_bytes", "share"),
    [
        ("switch", 1500, Fraction(1440, 1502)),
        ("switch@zeromq", 1500, Fraction(1440 * 1448, 1460 * 1514)),
        ("switch@rdma", 1500, Fraction(1004, 1082)),
        ("switch@rdma", 9000, Fraction(4076, 4154)),
        ("gloo", 1500, Fraction(1448, 1514)),
        ("ring", 9000, Fraction(8948, 9014)),
        ("ring@zeromq", 1500, Fraction(1448, 1514)),
        ("ring@udp", 1500, Fraction(1440, 1514)),
        ("ring@rdma+p3", 1500, Fraction(1024, 1082)),
        ("ring@rdma", 9000, Fraction(4096, 4154)),
    ],
)
def test_the_share_of_payload(method: str, mtu_bytes: int, share: Fraction) -> None:
    name = parse(method)
    elements = elements_of(name, 360, mtu_bytes)
    assert payload_share(name, elements, mtu_bytes) == share
    scales = Fraction(elements, elements + 1) if name.is_switch else 1
    assert framing_efficiency(name, elements, mtu_bytes, 4) == pytest.approx(float(share * scales), rel=1e-15)


PACKETS = 12


@pytest.mark.skipif(bool(library.missing()), reason=f"needs the compiled core: {library.missing()}")
@pytest.mark.parametrize("mtu_bytes", [576, 1500, 9000])
@pytest.mark.parametrize(("opcode", "more_bytes"), [(Opcode.SEND, 0), (Opcode.WRITE_WITH_IMM, 16 + 4)])
def test_rdma_puts_on_the_wire_what_the_bound_counts(mtu_bytes: int, opcode: Opcode, more_bytes: int) -> None:
    """A message of full packets, to a socket that counts them. RETH and immediate data come once per message."""
    framing = LINKS["rdma"].framing
    path_mtu = framing.payload_bytes(mtu_bytes)
    memory = np.zeros(PACKETS * path_mtu, np.uint8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire, soft.open("127.0.0.1", port=0) as context:
        wire.bind(("127.0.0.2", 0))
        wire.settimeout(20)
        domain, queue = context.alloc_pd(), context.create_cq(4)
        region = context.reg_mr(domain, memory, AccessFlags.LOCAL_WRITE)
        pair = context.create_qp(domain, QPType.UC, queue, queue)
        pair.connect(QPEnd(*wire.getsockname(), 17, 0), QPAttributes(path_mtu=path_mtu))
        request = SendRequest(1, opcode, region.address, memory.size, region.lkey, 1 << 20, 5, immediate=7)
        assert pair.post_send([request]) == 1
        sizes = [len(wire.recv(65_536)) for _ in range(PACKETS)]
    packet_bytes = [14 + 20 + 8 + size for size in sizes]
    assert max(size - 14 for size in packet_bytes) <= mtu_bytes
    assert packet_bytes[1:-1] == [framing.ethernet_bytes(path_mtu)] * (PACKETS - 2)
    share = payload_share(parse("ring@rdma"), 360, mtu_bytes)
    assert Fraction(memory.size, sum(packet_bytes) - more_bytes) == share


def test_the_switch_s_packets_in_virtual_time_are_those_of_the_bound() -> None:
    size_bytes = 100 * 1440
    found = time_allreduce(SimulationConfig(3, LinkConfig(10**9)), "switch", size_bytes)
    share = payload_share(parse("switch"), 360, 1500)
    description_bytes = 1502  # a packet that the bound leaves out
    sizes = [sent - description_bytes for sent in found.wire_tx_bytes + found.wire_rx_bytes]
    assert [Fraction(size_bytes, sent) for sent in sizes] == [share] * 6


# ---- bounds


@pytest.mark.parametrize(("workers", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75), (16, 1.875)])
def test_the_bound_of_host_allreduce_is_two_n_minus_one_over_n(workers: int, factor: float) -> None:
    network = NetworkParameters(workers, 100_000_000, 1500, 360)
    host = bound(parse("gloo"), 1_448_000, network)
    assert host.traffic_factor == factor
    assert host.wire_bytes_per_rank == pytest.approx(1_514_000 * factor, rel=1e-12)
    assert host.communication_ns == pytest.approx(1_514_000 * factor * 80, rel=1e-12)  # 80 ns per byte at 100 Mb/s
    assert bound(parse("switch"), 1_448_000, network).traffic_factor == 1.0


def test_the_bound_depends_on_the_method_and_not_on_link_or_schedule() -> None:
    network = NetworkParameters(4, 100_000_000, 1500, 360)
    factors = {"ring@zeromq+p3": 1.5, "tree": 2, "naive_ring": 3, "halving_doubling": 1.5, "ps": 1.5, "auto": 1.5}
    assert {method: bound(parse(method), 1, network).traffic_factor for method in factors} == factors
    shares = [bound(parse(method), 1, network).framing_efficiency for method in ("switch+p3", "switch")]
    assert shares[0] == shares[1]


@pytest.mark.parametrize(
    ("method", "gathered", "reduced", "both"),
    [
        ("switch", 0.75, 0.75, 1.0),
        ("switch@zeromq", 0.75, 0.75, 1.0),
        ("switch@rdma", 1.0, 1.0, 2.0),  # no packet is short, so that all send all values to all (W15)
        ("ring", 0.75, 0.75, 1.5),
    ],
)
def test_sharded_collectives_are_bounded_by_what_the_link_can_leave_out(
    method: str, gathered: float, reduced: float, both: float
) -> None:
    network = NetworkParameters(4, 100_000_000, 1500, 360)
    arrays: list[dict[Kind, int]] = [{"all_gather": 1000}, {"reduce_scatter": 1000}]
    found = [bound_together(parse(method), moved, 1000, network) for moved in (*arrays, arrays[0] | arrays[1])]
    assert [each.traffic_factor for each in found] == [gathered, reduced, both]
    for each in found:
        wire_bytes = 1000 * each.traffic_factor / each.framing_efficiency
        assert each.communication_ns == pytest.approx(wire_bytes * 80)  # 80 ns per byte at 100 Mb/s
        assert each.wire_bytes_per_rank == pytest.approx(wire_bytes)


def test_three_ranks_of_halving_doubling_send_one_and_a_half_arrays() -> None:
    assert traffic("halving_doubling", 3) == 1.5
    assert traffic("double_tree", 3) == 1.5


@pytest.mark.parametrize(
    ("servers", "backups", "factor", "per_rank", "per_server"),
    [
        (0, 0, 1.5, 1.5, None),
        (1, 0, 4.0, 1.0, 4.0),
        (2, 0, 2.0, 1.0, 2.0),
        (4, 0, 1.0, 1.0, 1.0),
        (8, 0, 1.0, 1.0, 0.5),
        (2, 1, 1.5, 1.0, 2.0),  # who isn't waited for sends its bytes as well
        (0, 1, 1.25, 1.5, None),
    ],
)
def test_parameter_servers_are_bounded_by_the_busier_of_two_links(
    servers: int, backups: int, factor: float, per_rank: float, per_server: float | None
) -> None:
    network = NetworkParameters(4, 100_000_000, 1500, 360, servers=servers, backups=backups)
    found = bound(parse("ps"), 1_448_000, network)
    assert found.traffic_factor == factor
    assert found.communication_ns == pytest.approx(1_514_000 * factor * 80, rel=1e-12)
    assert found.wire_bytes_per_rank == pytest.approx(1_514_000 * per_rank, rel=1e-12)
    if per_server is not None:
        expected = pytest.approx(1_514_000 * per_server, rel=1e-12)
        assert wire_bytes_per_server(parse("ps"), 1_448_000, network) == (expected, expected)
    assert bound(parse("ring"), 1_448_000, network).traffic_factor == 1.5, "other methods have no servers"


@pytest.mark.parametrize(
    ("servers", "sent", "received", "first"),
    [
        (0, (3 / 4, 3 / 4), (3 / 4, 3 / 4), (0, 3 / 4)),  # of each: pushed, weights
        (1, (1, 0), (0, 1), (0, 1)),
        (2, (1, 0), (0, 1), (0, 1)),
    ],
)
def test_where_servers_keep_weights_a_codec_is_of_what_is_pushed(
    servers: int, sent: tuple[float, float], received: tuple[float, float], first: tuple[float, float]
) -> None:
    """1,440 values in lanes of 8 bits have 360 words and a code. The weights that one rank waits for are in float32."""
    name = parse("ps~lanes8+ef")
    network = NetworkParameters(4, 100_000_000, 1500, 360, servers=servers, backups=3, keeps_weights=True)
    sizes = 1000 * 361 * 4, 1000 * 1440 * 4
    found = bound(name, sizes[1], network)

    def framed(parts: tuple[float, float]) -> object:
        return pytest.approx((parts[0] * sizes[0] + parts[1] * sizes[1]) * 1514 / 1448, rel=1e-12)

    assert (found.wire_bytes_per_rank, found.wire_rx_bytes_per_rank) == (framed(sent), framed(received))
    assert found.communication_ns / 80 == framed(first)
    assert found.traffic_factor == sum(first)
    assert found.framing_efficiency == pytest.approx(1448 / 1514)
    assert found.communication_ns == bound(parse("ps"), sizes[1], network).communication_ns
    if servers:
        each = 4 / servers
        assert wire_bytes_per_server(name, sizes[1], network) == (framed((0, each)), framed((each, 0)))
    assert bound(name, sizes[1], dataclasses.replace(network, keeps_weights=False)).wire_rx_bytes_per_rank is None


def test_limits_of_the_benchmark() -> None:
    network = NetworkParameters(4, 200_000_000, 1500, 360)
    limit = payload_limit(parse("switch"), network)
    assert limit == pytest.approx(25e6 * 1440 / 1502)
    assert algbw_bound(parse("switch"), "int32", network) == limit
    assert algbw_bound(parse("switch"), "float32", network) == pytest.approx(limit * 360 / 361)
    assert algbw_bound(parse("ring"), "float32", network) == pytest.approx(25e6 * 1448 / 1514 / 1.5)
    seconds = bound(parse("tree@rdma"), 10**6, network).communication_ns / 1e9
    assert 10**6 / seconds == pytest.approx(algbw_bound(parse("tree@rdma"), "float32", network))


@dataclass(frozen=True)
class Quarter(ArrayCodec):
    """Sums a quarter of the values, and gathers a byte of each rank for every value."""

    name, rounds = "quarter", 2

    def moved(self, values: int, workers: int) -> dict[Kind, float]:
        return {"allreduce": values, "all_gather": values * workers}

    def rounds_of(self, *_: object) -> Iterator[Reduction]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("method", "arrays", "packet"),
    [("ring", 1.5 / 4 + 0.75, 1448 / 1514), ("switch", 1 / 4 + 0.75, 1440 / 1502), ("ps", 1.5 / 4 + 0.75, 1448 / 1514)],
)
def test_codecs_of_whole_arrays_are_bounded_by_what_they_move(
    method: str, arrays: float, packet: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARRAY_CODECS, "quarter", Quarter)
    network, name = NetworkParameters(4, 200_000_000, 1500, 360), parse(f"{method}~quarter")
    found = bound(name, 4_000_000, network)
    assert found.traffic_factor == pytest.approx(arrays)
    assert found.framing_efficiency == pytest.approx(packet)
    assert found.wire_bytes_per_rank == pytest.approx(4e6 * arrays / packet)
    assert algbw_bound(name, "float32", network) == pytest.approx(4e6 * 1e9 / found.communication_ns)
    assert algbw_bound(name, "int32", network) == algbw_bound(parse(method), "int32", network)


@pytest.mark.parametrize(
    ("method", "times"),
    [
        ("switch~lanes8", 4 * 361 / 361),
        ("ring~lanes8", 4 * 360 / 361),
        ("gloo~bf16", 2),
        ("ring~fixed_point", 360 / 361),
    ],
)
def test_codecs_of_rows_have_their_share_of_the_bytes(method: str, times: float) -> None:
    network = NetworkParameters(4, 200_000_000, 1500, 360)
    plain, coded = parse(method.partition("~")[0]), parse(method)
    for one, other in (
        (bound(plain, 10**6, network).communication_ns, bound(coded, 10**6, network).communication_ns),
        (algbw_bound(coded, "float32", network), algbw_bound(plain, "float32", network)),
    ):
        assert one / other == pytest.approx(times)


def test_elements_fill_the_mtu_and_are_the_project_s_for_1500() -> None:
    assert [elements_that_fit(mtu_bytes) for mtu_bytes in (1500, 9000, 60)] == [360, 2232, 3]
    assert [elements_of(parse("switch@rdma"), 360, mtu_bytes) for mtu_bytes in (1500, 9000)] == [251, 1019]


@pytest.mark.parametrize("costs", [HostCosts(20_000), HostCosts(0, 2_500_000_000), HostCosts(7_000, 2_500_000_000, 1)])
@pytest.mark.parametrize("method", ["ring", "auto", "double_tree", "direct", "switch", "ps"])
def test_hosts_that_work_and_connections_that_are_slow_are_in_the_bound(method: str, costs: HostCosts) -> None:
    """Of one call of 4 kB or 300 kB on 8 hosts: no simulation is faster, and the bound is more than that of links."""
    for servers, later in ((0, False), (2, False), (2, True)) if method == "ps" else ((0, False),):
        config = SimulationConfig(8, LinkConfig(10**10, 0), streams=1, costs=costs)
        config = dataclasses.replace(config, servers=servers, ps={"push_then_pull": later})
        network = NetworkParameters(8, 10**10, 1500, 360, servers=servers, push_then_pull=later, **vars(costs))
        free = dataclasses.replace(network, transfer_ns=0, flow_bps=0, push_then_pull=False)
        for size_bytes in (4_000, 300_000):
            least = bound(parse(method), size_bytes, network).communication_ns
            assert least <= time_allreduce(config, method, size_bytes, "float32").duration_ns
            if size_bytes == 4_000 and costs.transfer_ns:
                assert least > bound(parse(method), size_bytes, free).communication_ns
