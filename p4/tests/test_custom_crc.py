"""CRCs that a program chooses when it runs: published check values, and a selector that follows."""

import pytest
from everything import packet, switch

from p4vm.algorithms import custom_crc
from p4vm.commands.line import run_command
from p4vm.engine import Crc
from p4vm.source import P4Error


@pytest.mark.parametrize(
    ("crc", "check"),
    [
        (Crc(16, 0x8005, 0, 0, True, True), 0xBB3D),  # CRC-16/ARC, as before any is set
        (Crc(16, 0x1021, 0xFFFF, 0, False, False), 0x29B1),  # CRC-16/CCITT-FALSE
        (Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xCBF43926),  # of Ethernet
        (Crc(32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283),  # CRC-32C
        (Crc(32, 0x04C11DB7, 0xFFFFFFFF, 0, False, False), 0x0376E6E7),  # CRC-32/MPEG-2
    ],
)
def test_a_custom_crc_gives_its_published_check_value(crc: Crc, check: int) -> None:
    assert custom_crc(crc)(b"123456789") == check


def test_a_selector_follows_the_custom_crc() -> None:
    running = switch()
    members = [running.act_prof_create_member("hashed", "forward", [1, port]) for port in range(1, 9)]
    group = running.act_prof_create_group("hashed")
    for member in members:
        running.act_prof_add_member_to_group("hashed", member, group)
    running.table_indirect_add_with_group("balanced", [1], group)
    run_command(running, "set_crc16_parameters calc 0x1021 0xffff 0x0000 false 0")
    packets = [packet(src=f"0a0000{host:02x}") for host in range(16)]
    crc = custom_crc(Crc(16, 0x1021, 0xFFFF, 0, False, False))
    wanted = [1 + crc(bytes([10, 0, 0, host])) % 8 for host in range(16)]
    assert [running.process(0, data, 0)[0][0] for data in packets] == wanted
    for wrong in ("set_crc16_parameters calc 0x11021 0 0 0 0", "set_crc32_parameters calc x 0 0 0 0"):
        with pytest.raises(P4Error):
            run_command(running, wrong)
