"""Impossible options of a switch are refused when they are made, in one line with how to fix them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from switchagg.errors import SwitchaggError
from transport.switch.daemon import SwitchDaemon
from transport.switch.daemon_options import DaemonOptions, default_addresses
from transport.switch.impairments import Impairments
from transport.switch.switch_endpoints import open_udp
from transport.worker.join_options import JoinOptions
from transport.worker.session import SwitchSession
from transport.zeromq.keys import load_keys, make_keys


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataplane": "tofino"}, "data plane 'tofino' is unknown; allowed: auto, "),
        (
            {"dataplane": "reference", "impairments": Impairments()},
            "impairments need the data plane native or xdp; reference has none",
        ),
        ({"slots": 0}, "slots 0: 1 to 65536"),
        ({"elements": 0}, "elements 0: 1 to 16000"),
        ({"elements": 99_999}, "elements 99999: 1 to 16000"),
        ({"dataplane": "p4", "elements": 360}, "the data plane p4 holds at most 256: give --elements 256 or less"),
        ({"link": "rdma", "elements": 360}, r"over RDMA a frame fills the path MTU, so one of .*251 \(MTU 1024\)"),
        ({"lease_s": 0.1}, "lease 0.1 s"),
        ({"segments_max": 65}, "segments 65: 1 to 64"),
        ({"bind_control": "5555"}, "control address '5555': expected tcp://HOST:PORT"),
    ],
)
def test_a_switch_that_can_not_be_says_why(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SwitchaggError, match=words):
        DaemonOptions(**{"bind_data": ("127.0.0.1", 0), **options})


def test_without_keys_a_switch_serves_its_own_host_alone(tmp_path: Path) -> None:
    make_keys(tmp_path)
    keys = load_keys(tmp_path)
    assert default_addresses("auto", "udp", None) == ("tcp://127.0.0.1:5555", ("127.0.0.1", 5556))
    assert default_addresses("auto", "rdma", None) == ("tcp://127.0.0.1:5555", ("127.0.0.1", 4791))
    assert default_addresses("xdp", "udp", None) == ("tcp://127.0.0.1:5555", ("0.0.0.0", 5556))  # of its interfaces
    assert default_addresses("auto", "zeromq", keys) == ("tcp://0.0.0.0:5555", ("0.0.0.0", 5556))
    named = "tcp://10.0.0.1:5"
    assert default_addresses("auto", "udp", None, named) == (named, ("10.0.0.1", 5556))
    assert default_addresses("auto", "udp", None, "tcp://eth0:5") == ("tcp://eth0:5", ("0.0.0.0", 5556))
    assert DaemonOptions() == DaemonOptions("tcp://127.0.0.1:5555", ("127.0.0.1", 5556))
    assert DaemonOptions().exposure == ""


@pytest.mark.parametrize(
    ("control", "data", "link", "keyed", "words"),
    [
        ("tcp://127.0.0.1:1", ("127.0.0.1", 1), "udp", False, []),
        ("tcp://0.0.0.0:1", ("127.0.0.1", 1), "udp", False, ["join"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1), "udp", False, ["join", "forge"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1), "udp", True, []),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1), "xdp", True, ["forge", "MACsec", "--dataplane native"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 4791), "rdma", False, ["join", "forge", "MACsec", "--link udp"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 4791), "rdma", True, ["forge", "MACsec", "--link udp"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1), "zeromq", False, ["join", "forge"]),
        ("tcp://10.0.0.1:1", ("10.0.0.1", 1), "zeromq", True, []),
    ],
)
def test_an_address_that_others_reach_is_said_to_be_open(
    tmp_path: Path, control: str, data: tuple[str, int], link: str, keyed: bool, words: list[str]
) -> None:
    make_keys(tmp_path)
    kind = {"dataplane": "xdp"} if link == "xdp" else {"link": link}
    said = DaemonOptions(control, data, **kind, keys=load_keys(tmp_path) if keyed else None).exposure
    all_words = ("join", "forge", "MACsec", "--dataplane native", "--link udp")
    assert [word for word in all_words if word in said] == words
    assert said.count("\n") == 0


@pytest.mark.parametrize(
    ("options", "elements"),
    [({}, 360), ({"link": "rdma"}, 251), ({"dataplane": "p4"}, 256), ({"link": "rdma", "elements": 1019}, 1019)],
)
def test_packets_are_as_long_as_link_and_data_plane_hold(options: dict[str, Any], elements: int) -> None:
    assert DaemonOptions(bind_data=("127.0.0.1", 0), **options).slot_elements == elements


def test_the_link_of_a_switch_sends_as_many_packets_at_once_as_it_is_told() -> None:
    end = open_udp(
        DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), dataplane="reference", segments_max=41), print, print
    )
    end.host.stop()
    assert end.host._link.segments_max == 41  # type: ignore[attr-defined]


@pytest.mark.parametrize("link", ["udp", "zeromq"])
def test_a_second_switch_takes_free_ports_where_none_are_named(link: str) -> None:
    told: list[str] = []
    with SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", ("127.0.0.1", 0), link=link)) as first:
        taken = first.control_endpoint, first.data_address
        with pytest.raises(SwitchaggError, match="in use"):
            SwitchDaemon(DaemonOptions("tcp://127.0.0.1:0", first.data_address, link=link))
        options = DaemonOptions(*taken, link=link, any_control_port=True, any_data_port=True)
        with SwitchDaemon(options, log=told.append) as second:
            assert second.control_endpoint != first.control_endpoint
            port = second.data_address[1]
            assert port not in (0, taken[1][1])
            assert told == [f"data port {taken[1][1]} is taken: this switch's is {port}"]
            assert f":{port} " in second.options.exposure or not second.options.exposure
            with SwitchSession.join(second.control_endpoint, "job", 0, 1, JoinOptions(link=link)) as session:
                assert session.allreduce(np.ones(4, np.int32)).result(60).tolist() == [1] * 4
        with pytest.raises(SwitchaggError, match=r"control address .* in use"):
            SwitchDaemon(DaemonOptions(*taken, link=link, any_data_port=True), log=told.append)
        assert sum("is taken" in line for line in told) == 1
