"""What a link is asked to be, what the kernel answers, and what is refused: no network is built here."""

import dataclasses
import struct
from pathlib import Path

import pytest

from emulation.scenario import scenario
from emulation.testbed import qdisc
from emulation.testbed.mininet import shaping
from emulation.testbed.mininet.services import SwitchPlace
from emulation.testbed.mininet.shaping import NetworkSpec, PortReport, UnfitError

SPEC = NetworkSpec(workers=4)
AS_ASKED = PortReport(
    node="h1",
    interface="h1-eth0",
    ifindex=2,
    address="02:00:00:00:00:01",
    rate_bps=200_000_000,
    ceil_bps=200_000_000,
    burst_bytes=12_499,
    queue_bytes=1_000_000,
    mtu_bytes=1500,
    gso_max_bytes=65_536,
    gso_max_segments=65_535,
    offloads={"tcp-segmentation-offload": True, "generic-segmentation-offload": True},
    netem=None,
)


def test_a_scenario_s_topology_and_faults_become_the_spec() -> None:
    loaded = scenario.load(scenario.find("lossy"))
    spec = NetworkSpec.from_scenario(loaded)
    assert (spec.workers, spec.rate_bps, spec.queue_bytes, spec.delay_ns, spec.mtu_bytes) == (
        loaded.topology.workers,
        loaded.topology.rate_bps,
        loaded.topology.queue_bytes,
        loaded.topology.delay_ns,
        loaded.topology.mtu_bytes,
    )
    assert (spec.loss, spec.duplicate, spec.reorder, spec.corrupt) == (
        loaded.faults.loss,
        loaded.faults.duplicate,
        loaded.faults.reorder,
        loaded.faults.corrupt,
    )


def test_shaping_is_htb_over_a_queue_counted_in_bytes() -> None:
    assert shaping.shape_lines(SPEC, "h1-eth0") == [
        "tc qdisc replace dev h1-eth0 root handle 5: htb default 1",
        "tc class replace dev h1-eth0 parent 5: classid 5:1 htb rate 200000000bit ceil 200000000bit "
        "burst 12500 cburst 12500 quantum 1514",
        "tc qdisc replace dev h1-eth0 parent 5:1 handle a: bfifo limit 1000000",
    ]


def test_a_bundle_is_what_the_link_sends_at_once_or_what_our_own_sends_hand_over() -> None:
    def of(rate_bps: int) -> list[str]:
        spec = dataclasses.replace(SPEC, rate_bps=rate_bps)
        lines, shaped = shaping.host_lines(spec, "x"), shaping.shape_lines(spec, "x")
        assert lines[: len(shaped)] == shaped
        return lines[len(shaped) :]

    assert of(200_000_000) == ["ip link set dev x gso_max_size 24000"]  # 16 packets: more than 500 us of the link
    assert of(900_000_000) == ["ip link set dev x gso_max_size 56250"]
    assert of(10_000_000_000) == ["ip link set dev x gso_max_size 65536"]
    assert of(0) == []


def test_priority_queues_are_htb_classes_that_borrow_in_order() -> None:
    lines = shaping.shape_lines(dataclasses.replace(SPEC, priority_queues=8), "h1-eth0")
    assert lines[0] == "tc qdisc replace dev h1-eth0 root handle 5: htb default 17"
    assert lines[1] == shaping.shape_lines(SPEC, "h1-eth0")[1]
    assert lines[2:5] == [
        "tc class replace dev h1-eth0 parent 5:1 classid 5:10 htb rate 200000bit ceil 200000000bit burst 1514 "
        "cburst 12500 prio 0 quantum 1514",
        "tc qdisc replace dev h1-eth0 parent 5:10 handle a0: bfifo limit 1000000",
        "tc filter add dev h1-eth0 parent 5: protocol ip prio 1 u32 match u8 0xe0 0xe0 at 1 flowid 5:10",
    ]
    assert len(lines) == 2 + 3 * 8 - 1  # best effort needs no filter
    assert sum("5:16 htb" in line and "prio 6" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"priority_queues": 4}, "priority_queues = 4: Mininet links on this machine do 0 or 8"),
        (
            {"priority_queues": 8, "delay_ns": 1000},
            "priority_queues = 8 together with [topology] delay_ns: netem queues",
        ),
    ],
)
def test_impossible_priority_queues_are_refused(changed: dict[str, int], words: str) -> None:
    with pytest.raises(UnfitError) as refused:
        shaping.refuse_impossible(dataclasses.replace(SPEC, **changed))  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_priority_queues_are_refused_by_name_where_the_kernel_has_no_u32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaping, "u32_missing", lambda: "TC classifier not found.")
    with pytest.raises(UnfitError, match=r"needs HTB and the u32 filter.*TC classifier not found.*CONFIG_NET_CLS_U32"):
        shaping.refuse_impossible(dataclasses.replace(SPEC, priority_queues=8))


def test_faults_and_delay_become_netem_and_faults_forbid_bundles() -> None:
    delayed = dataclasses.replace(SPEC, delay_ns=5_000_000)
    # 1,000,000 bytes of queue and 125,000 in flight, in frames of 1514
    assert shaping.netem_arguments(delayed) == "limit 744 delay 5000000ns"
    assert not any("ethtool" in line for line in shaping.shape_lines(delayed, "x"))
    faulty = dataclasses.replace(SPEC, loss=0.01, duplicate=0.001, reorder=0.02, corrupt=0.0005)
    assert shaping.netem_arguments(faulty) == "limit 661 loss 1% duplicate 0.1% corrupt 0.05% reorder 2%"
    assert shaping.shape_lines(faulty, "x")[-1] == "ethtool -K x tso off gso off tx-udp-segmentation off"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"workers": 65}, "[topology] workers = 65"),
        ({"rate_bps": 10}, "[topology] rate_bps = 10"),
        ({"rate_bps": 400_000_000_000}, "[topology] rate_bps = 400000000000"),
        ({"queue_bytes": 20_000}, "[topology] queue_bytes = 20000"),
        ({"mtu_bytes": 100_000}, "[topology] mtu_bytes = 100000"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(changed: dict[str, int], named: str) -> None:
    with pytest.raises(UnfitError) as refused:
        shaping.refuse_impossible(dataclasses.replace(SPEC, **changed))
    assert str(refused.value).startswith(named)
    assert "--on sim" in str(refused.value)


def test_settings_that_need_netem_are_refused_by_name_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wish = dataclasses.replace(SPEC, delay_ns=1_000, loss=0.01)
    monkeypatch.setattr(shaping, "netem_missing", lambda: "Error: Specified qdisc kind is unknown.")
    with pytest.raises(UnfitError) as refused:
        shaping.refuse_impossible(wish)
    message = str(refused.value)
    assert "[topology] delay_ns = 1000, [faults] loss = 0.01" in message
    assert "Specified qdisc kind is unknown" in message
    assert "--on sim" in message
    monkeypatch.setattr(shaping, "netem_missing", lambda: None)
    shaping.refuse_impossible(wish)  # a kernel that has it is taken at its word, and read back later


def test_a_port_with_the_requested_settings_shows_no_difference() -> None:
    assert shaping.differences(SPEC, AS_ASKED) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rate_bps": 0}, "rate 0 instead of 200000000 bits/s"),  # what Mininet does above 1 Gb/s
        ({"ceil_bps": 100_000_000}, "ceil 100000000 instead"),
        ({"burst_bytes": 15_360}, "burst 15360 instead of 12500"),
        ({"queue_bytes": 0}, "queue 0 instead of 1000000 bytes"),
        ({"mtu_bytes": 9000}, "MTU 9000 instead of 1500"),
    ],
)
def test_a_port_that_differs_is_named(changed: dict[str, int], problem: str) -> None:
    problems = shaping.differences(SPEC, dataclasses.replace(AS_ASKED, **changed))
    assert len(problems) == 1
    assert problem in problems[0]


def test_netem_s_settings_are_compared_with_the_requested_ones() -> None:
    spec = dataclasses.replace(SPEC, delay_ns=5_000_000, loss=0.01)
    single = {"tcp-segmentation-offload": False, "generic-segmentation-offload": False}
    answer = {
        "limit": 744,
        "delay": {"delay": 0.005, "jitter": 0, "correlation": 0},
        "loss-random": {"loss": 0.01, "correlation": 0},
        "ecn": False,
        "gap": 0,
    }
    report = dataclasses.replace(AS_ASKED, netem=answer, offloads=single)
    assert shaping.differences(spec, report) == []
    assert shaping.differences(spec, dataclasses.replace(report, netem=None)) == ["no netem qdisc: no delay, no faults"]
    weak = {**answer, "loss-random": {"loss": 0.001}}
    assert shaping.differences(spec, dataclasses.replace(report, netem=weak)) == ["loss 0.001 instead of 0.01"]
    late = {**answer, "delay": {"delay": 0.004}}
    assert shaping.differences(spec, dataclasses.replace(report, netem=late)) == ["delay 4000000 instead of 5000000 ns"]
    bundles = {"tcp-segmentation-offload": True, "generic-segmentation-offload": False}
    assert shaping.differences(spec, dataclasses.replace(report, offloads=bundles)) == [
        "tcp-segmentation-offload is on: faults would hit whole bundles"
    ]


def test_ethtool_s_output_is_parsed_per_interface() -> None:
    lines = [
        "Features for s1-eth1:",
        "tcp-segmentation-offload: on",
        "\ttx-udp-segmentation: off [requested on]",
        "\ttx-gre-segmentation: on",
        "Features for s1-eth2:",
        "generic-receive-offload: off",
    ]
    assert shaping.parse_offloads(lines) == {
        "s1-eth1": {"tcp-segmentation-offload": True, "tx-udp-segmentation": False},
        "s1-eth2": {"generic-receive-offload": False},
    }


# ---- netlink


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def tc_message(*attributes: bytes) -> bytes:
    return struct.pack("=BBHiIII", 0, 0, 0, 3, 0x5_0001, 0xFFFF_FFFF, 0) + b"".join(attributes)


def test_counters_and_backlog_are_read_from_a_netlink_message() -> None:
    basic = attribute(1, struct.pack("=QI", 10_000_000_000, 5))
    packets = attribute(8, struct.pack("=Q", 7_000_000_000))
    queue = attribute(3, struct.pack("=IIIII", 2, 131_000, 3, 0, 99))
    entry = qdisc.parse_entry(tc_message(attribute(1, b"htb\0"), attribute(7, basic + packets + queue)))
    assert (entry.kind, entry.ifindex, entry.handle) == ("htb", 3, 0x5_0001)
    assert (entry.sent_bytes, entry.sent_packets) == (10_000_000_000, 7_000_000_000)
    assert (entry.queued_packets, entry.backlog_bytes, entry.drops, entry.overlimits) == (2, 131_000, 3, 99)


@pytest.mark.parametrize("rate", [12_500_000, 12_500_000_000])
def test_htb_s_rate_is_read_in_32_and_in_64_bits(rate: int) -> None:
    short = min(rate, 2**32 - 1)
    ticks = round(50_000 * 1e9 / rate / 64)
    parameters = struct.pack("=8xI", short) * 2 + struct.pack("=IIIII", ticks, ticks, 1514, 0, 0)
    options = attribute(1, parameters)
    if rate > short:
        options += attribute(6, struct.pack("=Q", rate)) + attribute(7, struct.pack("=Q", rate))
    entry = qdisc.parse_entry(tc_message(attribute(1, b"htb\0"), attribute(2, options)))
    read = qdisc.htb_class(entry)
    assert (read.rate_bytes_per_s, read.ceil_bytes_per_s) == (rate, rate)
    assert abs(read.burst_bytes - 50_000) < 500


def test_only_an_htb_class_has_htb_settings() -> None:
    with pytest.raises(ValueError, match="not an HTB class: bfifo"):
        qdisc.htb_class(qdisc.parse_entry(tc_message(attribute(1, b"bfifo\0"))))


def test_the_custom_file_needs_only_the_standard_library_and_mininet() -> None:
    """`mn` runs it under the system's Python, where numpy and the rest are not installed."""
    folder = Path(shaping.__file__).parents[2]
    nodes = (f"testbed/{stem}.py" for stem in ("mininet/emulated_network", "mininet/shaping", "qdisc", "netns"))
    for name in ("mn_custom.py", *nodes):
        text = (folder / name).read_text(encoding="utf-8")
        for foreign in ("numpy", "msgspec", "zmq", "typer", "torch"):
            assert f"import {foreign}" not in text, f"{name} imports {foreign}"


@pytest.mark.parametrize(
    ("rate_bps", "mtu_bytes", "queues", "packets"),
    [
        (100_000_000, 1500, 0, 16),  # as ever: a burst holds 4
        (1_000_000_000, 1500, 0, 41),  # 62.5 kB
        (0, 1500, 0, 43),  # 64 kB
        (0, 9000, 0, 7),
        (0, 200, 0, 64),
        (1_000_000_000, 1500, 8, 16),  # an urgent packet must not wait for 41 others
    ],
)
def test_a_send_is_as_long_as_a_burst(rate_bps: int, mtu_bytes: int, queues: int, packets: int) -> None:
    spec = NetworkSpec(4, rate_bps=rate_bps, mtu_bytes=mtu_bytes, priority_queues=queues)
    assert spec.segments_max == packets
    words = SwitchPlace(5555, 5556, "native", "udp", 360, 4096, segments=packets).process().command
    assert words[words.index("--segments") + 1] == str(packets)
