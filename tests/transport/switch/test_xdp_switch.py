"""xdp_switch and interfaces: which ports are taken, and what is refused, without any privileges."""

import pytest

from switchagg.errors import SwitchaggError
from transport.switch.impairments import Impairments, LinkImpairments
from transport.switch.interfaces import Interface, interfaces
from transport.switch.xdp import _addresses, _check_mtu, _refuse_impossible, choose


def interface(
    index: int, name: str, *addresses: str, master: int = 0, kind: str = "veth", up: bool = True
) -> Interface:
    return Interface(index, name, up, False, 1500, master, kind, addresses=addresses)


ETH0 = interface(2, "eth0", "192.0.2.1", kind="")
ETH1 = interface(3, "eth1", "192.0.2.1", "192.0.2.9", kind="", up=False)
BRIDGE = interface(4, "br0", "10.0.0.254", kind="bridge")
PORTS = [interface(5, "p1", master=4), interface(6, "p2", master=4, up=False)]
EMPTY = interface(7, "br1", "10.1.0.254", kind="bridge")
ALL = [ETH0, ETH1, BRIDGE, *PORTS, EMPTY]


def test_ports_by_address_or_name() -> None:
    assert choose(ALL, "192.0.2.1") == [ETH0]
    assert choose(ALL, "10.0.0.254") == PORTS
    assert choose(ALL, "0.0.0.0", ["br0", "eth0", "p1", "eth0"]) == [*PORTS, ETH0]
    assert choose(ALL, "192.0.2.9", ["eth1"]) == [ETH1]


@pytest.mark.parametrize(
    ("host", "names", "words"),
    [
        ("0.0.0.0", None, "--data HOST:PORT"),
        ("192.0.2.9", None, "no interface that is up has the address 192.0.2.9"),
        ("198.51.100.1", None, "no interface that is up"),
        ("10.1.0.254", None, "the bridge br1 has no ports"),
        ("192.0.2.1", ["eth7"], "there is no interface 'eth7' here; there are: br0, br1, eth0, "),
    ],
)
def test_no_ports(host: str, names: list[str] | None, words: str) -> None:
    with pytest.raises(SwitchaggError, match=words):
        choose(ALL, host, names)


def test_addresses_that_reach_ports() -> None:
    assert _addresses(ALL, [*PORTS, ETH0]) == ["192.0.2.1", "10.0.0.254"]
    with pytest.raises(SwitchaggError, match="no IPv4 address on p9"):
        _addresses(ALL, [interface(9, "p9")])


def test_the_largest_packet_must_fit_the_mtu() -> None:
    _check_mtu([ETH0], 363)
    with pytest.raises(SwitchaggError, match=r"need 1504.* at most 363 elements"):
        _check_mtu([ETH0], 364)


def test_only_loss_is_offered() -> None:
    _refuse_impossible(Impairments(LinkImpairments(loss=0.1), LinkImpairments(loss=0.2), 7))
    with pytest.raises(SwitchaggError, match="down"):
        _refuse_impossible(Impairments(down=LinkImpairments(loss=0.1, delay_ns=1)))


def test_interfaces_of_this_namespace() -> None:
    (loopback,) = [one for one in interfaces() if one.loopback]
    assert loopback.name == "lo"
    assert loopback.mtu > 1500
    assert loopback.addresses[:1] in ((), ("127.0.0.1",))
