"""The benchmark's tables as text: nccl-tests' columns first, then what explains them. README.md defines them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulation.testbed.certificate.fidelity import rate_text

HEAD = (
    f"#{'size':>10} {'count':>10} {'type':>8} {'redop':>6} {'root':>5}  {'method':<24}{'time':>10} {'25 % … 75 %':>19}"
    f"{'ops':>5} {'algbw':>9} {'busbw':>9} {'wire tx':>11} {'wire rx':>11} {'#wrong':>7} {'limit':>7} {'bound':>7}"
    "  limited by"
)
UNITS = (
    f"#{'(B)':>10} {'(elements)':>10} {'':>8} {'':>6} {'':>5}  {'':<24}{'(us)':>10} {'(us)':>19}"
    f"{'':>5} {'(MB/s)':>9} {'(MB/s)':>9} {'(B/rank)':>11} {'(B/rank)':>11} {'':>7} {'(%)':>7} {'(%)':>7}"
)


def heading(network: dict[str, Any]) -> list[str]:
    """Lines above one network's rows."""
    topology, switch, loss = (network["scenario"][table] for table in ("topology", "switch", "faults"))
    rate = topology["rate_bps"]
    links = f"shaped to {rate_text(rate)} in both directions (HTB)" if rate else "not shaped"
    lost = f", {100 * loss['loss']:g} % of all packets lost, on each link and way" if network["loss_by"] else ""
    return [
        f"# {topology['workers']} workers, links {links}, MTU {topology['mtu_bytes']}, switch: E {switch['elements']}, "
        f"window {switch['window_slots']}{lost}",
        HEAD,
        UNITS,
    ]


def line(row: dict[str, Any]) -> str:
    """A row as a line of the table."""
    times = row["time_ns"]
    between = f"{times['p25'] / 1e3:.0f} … {times['p75'] / 1e3:.0f}"
    return (
        f"{row['size_bytes']:>11} {row['count']:>10} {row['type']:>8} {row['redop']:>6} {row['root']:>5}  "
        f"{row['name']:<24}{times['median'] / 1e3:>10.1f} {between:>19}{times['count']:>5} "
        f"{_scaled(row['algbw_bytes_per_s'], 1e6, 2):>9} {_scaled(row['busbw_bytes_per_s'], 1e6, 2):>9} "
        f"{row['wire_tx_bytes_per_rank']:>11.0f} {row['wire_rx_bytes_per_rank']:>11.0f} {row['wrong_elements']:>7} "
        f"{_scaled(row['share_of_payload_limit'], 0.01, 1):>7} {_scaled(row['share_of_bound'], 0.01, 1):>7}  "
        f"{row['limited_by']}"
    )


def _scaled(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:.{digits}f}"


class TablePrinter:
    """Prints rows as they come, each network under its heading."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._network: dict[str, Any] | None = None

    def __call__(self, network: dict[str, Any], row: dict[str, Any]) -> None:
        if network != self._network:
            self._network = network
            self._print_line("\n".join(heading(network)))
        self._print_line(line(row))
