"""What Mininet's users do by hand on our switches: hosts added at run time, several switches, its iperf test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulation.testbed.mininet.services import RunningService, ServiceProcess
from tests.shared.starved import STARVED, busy

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("requires_mininet")]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
s1 ip -br -4 addr show s1
s2 ip -br -4 addr show s2
py net.addHost("h3")
py net.addLink(s2, net.get("h3"))
h1 ping -c 1 -W 1 10.0.0.254 > /dev/null && echo "s1 answers"
h1 ping -c 1 -W 1 10.0.0.253 > /dev/null && echo "s2 answers"
py s2.attach("s2-eth3")
py net.get("h3").configDefault()
h1 ping -c 1 -W 5 10.0.0.3 > /dev/null && echo "h3 answers"
py s2.detach("s2-eth3")
h1 ping -c 1 -W 1 10.0.0.3 > /dev/null || echo "h3 is gone"
py s1.attach("s1-eth9")
"""


def test_hosts_come_and_go_and_two_switches_have_two_addresses(tmp_path: Path) -> None:
    program = shutil.which("mn")
    if program is None:
        pytest.skip("needs Mininet's command mn")
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    command = [program, "--custom", str(ROOT / "emulation/mn_custom.py"), "--topo", "linear,2", "--test", "none"]
    command += ["--switch", "switchagg_bridge", "--host", "switchagg", "--controller", "none", "--post", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    said = done.stdout + done.stderr
    for expected in (
        "10.0.0.254/24",
        "10.0.0.253/24",
        "s1 answers",
        "s2 answers",
        "h3 answers",
        "h3 is gone",
        "s1 has no port s1-eth9 to attach or detach; make it: net.addLink(s1, host)",
    ):
        assert expected in said, said


def test_iperf_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from emulation.testbed.mininet import emulated_network
    from emulation.testbed.mn_cli import mn_nodes

    import emulation.mn_custom  # noqa: F401  # isort: skip

    class Net:
        hosts: Any = None  # nothing may be asked of them

    monkeypatch.setattr(mn_nodes.shutil, "which", lambda program: None if program == "telnet" else f"/bin/{program}")
    assert emulated_network.Mininet.iperf(Net()) == []
    assert "iperf can't be tested: telnet missing; apt-get install telnet" in caplog.text


def test_a_switch_with_a_number_beyond_the_addresses_is_refused() -> None:
    from emulation.testbed.mininet import emulated_network
    from emulation.testbed.mininet.shaping import UnfitError

    with pytest.raises(UnfitError, match="s101: its number is 101; expected s1 to s100"):
        emulated_network.BridgeSwitch("s101")


def test_a_starved_data_plane_is_waited_for() -> None:
    command = (sys.executable, "-S", "-c", f"{STARVED}\nprint('it is ready', flush=True)\ntime.sleep(60)")
    service = ServiceProcess(command, ready="it is ready", timeout_s=1.0)
    with busy():
        running = RunningService(os.getpid(), service)
        try:
            running.wait_until_ready()
        finally:
            running.close()
