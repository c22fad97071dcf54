"""Whether the kernel takes the XDP switch on a veth: tried, in a network namespace that ends with this process.

Prints one line: what it is, or what is missing. `switchagg doctor` runs it; exit status 1 if it can't be.
"""

import subprocess
import sys

from switchagg.dataplane.xdp import KernelSwitch
from switchagg.errors import SwitchaggError
from switchagg.native import bpf

PORT, PEER = "sa-probe0", "sa-probe1"


def attached_how() -> str:
    """Loads the programs and attaches them to a new veth; returns how, as a text. Raises SwitchaggError, OSError."""
    subprocess.run(["ip", "link", "add", PORT, "type", "veth", "peer", PEER], check=True, capture_output=True)
    switch = KernelSwitch(8, 360, ["192.0.2.1"], 5556)
    index = bpf.interface_index(PORT)
    try:
        link, mode = bpf.attach_xdp(switch.object.program("sa_switch"), PORT, index, native=True), "native"
    except OSError:
        link, mode = bpf.attach_xdp(switch.object.program("sa_switch"), PORT, index, native=False), "generic"
    up = bpf.attach_ingress(switch.object.program("sa_deliver"), PORT, index)
    way = "clsact" if _has_clsact() else "tcx"
    up.close()
    link.close()
    return f"{mode} XDP on veth, delivery by {way}"


def _has_clsact() -> bool:
    tc = subprocess.run(["tc", "qdisc", "show", "dev", PORT], check=True, capture_output=True, text=True)
    return "clsact" in tc.stdout


def main() -> int:
    try:
        print(attached_how())
    except (SwitchaggError, OSError, subprocess.CalledProcessError) as error:
        stderr = getattr(error, "stderr", None)
        print((stderr.decode().strip() if stderr else str(error)).removeprefix("BPF: "))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
