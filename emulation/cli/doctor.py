"""What this machine can do for switchagg: each thing is tried, not guessed, and what is missing is listed with how to
get it.

Probes run side by side, change nothing that outlives them (qdiscs go onto the loopback of a namespace that dies with
its process) and never raise: a probe that fails to probe is a finding too.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import platform
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from emulation.testbed import netns, patience
from switchagg.errors import SwitchaggError

BESIDES = "not needed to run;"
PROBE_TIMEOUT_S = 30.0
"""For one child process. PyTorch's libraries take seconds on a cold disk; all else milliseconds."""

EVERYTHING = "every run"
XDP_PLANE = "the data plane xdp"
# Debian keeps tc, ethtool and brctl where a plain user's PATH does not look.
SEARCH_PATH = os.pathsep.join(filter(None, (os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
MODULES = Path("/lib/modules")
DEBIAN_MININET = Path("/usr/lib/python3/dist-packages/mininet")

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_BPF_PROG_LOAD, _BPF_PROG_TYPE_XDP, _XDP_PASS = 5, 6, 2

QDISCS = {
    "htb": "htb",
    "netem": "netem delay 1ms",
    "tbf": "tbf rate 100mbit burst 32k latency 20ms",
    "prio": "prio",
    "fq": "fq",
    "fq_codel": "fq_codel",
    "red": "red limit 400000 min 30000 max 90000 avpkt 1500 burst 55",
    "hfsc": "hfsc",
}


@dataclass(frozen=True)
class Finding:
    """What a probe has found. remedy: how to get what is missing; "" if nothing is. needed_for: in place of PROBES'."""

    detail: str
    remedy: str = ""
    needed_for: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy


@dataclass(frozen=True)
class MachineCheck:
    """One thing looked at. `remedy`: how to get what is missing; empty if `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str
    needed_for: str
    """What can't be done without it; `EVERYTHING` makes `switchagg doctor` exit non-zero."""


def _answer(*command: str) -> str | None:
    """What a command prints, or None if it is missing, fails or takes too long."""
    environment = {**os.environ, "PATH": SEARCH_PATH}
    try:
        done = patience.run(command, PROBE_TIMEOUT_S, check=True, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _find(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


# ---- Python


def _python() -> Finding:
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    return Finding(version, "" if ok else "install Python 3.11 or newer")


def _package(name: str, module: str) -> Finding:
    """A Python package without which nothing runs. It is imported: half an installation is none."""
    try:
        importlib.import_module(module)
    except Exception:
        detail = "broken" if importlib.util.find_spec(module) else "missing"
        return Finding(detail, f"pip install --force-reinstall {name}, or make setup")
    return Finding(metadata.version(name))


def _torch() -> Finding:
    answer = _answer(sys.executable, "-P", "-m", "emulation.cli.torch_probe")
    if answer is None:
        return Finding("missing or broken", "make setup, or pip install 'torch>=2.11'")
    version, cuda, available, *too_old = answer.splitlines()[-1].split(maxsplit=3)
    if too_old:
        detail, _, remedy = too_old[0].partition("; run: ")
        return Finding(f"{version}, {detail}", remedy)
    device = f"CUDA {cuda}, GPU usable" if available == "True" else "runs on the CPU"
    return Finding(f"{version}, {device}")


# ---- rights and namespaces


def _root() -> Finding:
    if os.geteuid() != 0:
        remedy = (
            "not needed with user namespaces (below): switchagg compare ... --on mininet; else sudo $(which switchagg)"
        )
        return Finding(f"uid {os.geteuid()}", remedy, "Mininet without user namespaces")
    if _answer("unshare", "--net", "true") is None:
        remedy = "a container needs --privileged, or --cap-add SYS_ADMIN and NET_ADMIN"
        return Finding("root, but may not make network namespaces", remedy)
    return Finding("root, may make network namespaces")


def _user_namespaces() -> Finding:
    if netns.user_namespaces_allowed():
        return Finding("a plain user may make network namespaces")
    if _find("unshare") is None:
        return Finding("unshare is missing", "apt-get install util-linux")
    switches = {
        "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
        "kernel.unprivileged_userns_clone": ("0", "1"),
        "user.max_user_namespaces": ("0", "10000"),
    }
    for name, (forbids, allows) in switches.items():
        if _text("/proc/sys/" + name.replace(".", "/")) == forbids:
            remedy = f"as root: sysctl {name}={allows}; or run as root"
            return Finding(f"forbidden by {name}", remedy)
    return Finding("forbidden here (a container's profile?)", "run as root")


# ---- Mininet and links


def _mininet() -> Finding:
    packages = {"mnexec": "mininet", "ip": "iproute2", "tc": "iproute2", "ethtool": "ethtool", "brctl": "bridge-utils"}
    packages |= {"ifconfig": "net-tools", "ping": "iputils-ping"}
    missing = {program: package for program, package in packages.items() if _find(program) is None}
    if importlib.util.find_spec("mininet") is None and not DEBIAN_MININET.is_dir():
        missing["Python package mininet"] = "mininet"
    if missing:
        remedy = f"as root: apt-get install --no-install-recommends {' '.join(sorted(set(missing.values())))}"
        return Finding(f"missing: {', '.join(missing)}", remedy)
    return Finding(f"{_mininet_version()}, with all programs it calls")


def _mininet_version() -> str:
    try:
        return metadata.version("mininet")
    except metadata.PackageNotFoundError:
        return _answer("dpkg-query", "-W", "-f", "${Version}", "mininet") or "version unknown"


def _in_own_network(script: str) -> str | None:
    """What a shell script prints as root of a network namespace that ends with it; None if there can be none."""
    rights = ("--net",) if os.geteuid() == 0 else ("--user", "--map-root-user", "--net")
    return _answer("unshare", *rights, "sh", "-c", script)


def _qdiscs_present() -> list[str] | None:
    """Those of `QDISCS` that the kernel takes, each put on a loopback; None if there is no network to try in."""
    tries = [
        f"tc qdisc add dev lo root {options} 2>/dev/null && echo {name} && tc qdisc del dev lo root"
        for name, options in QDISCS.items()
    ]
    answer = _in_own_network("; ".join(tries) + "; true")
    return None if answer is None else answer.split()


def _qdisc(wanted: str) -> Finding:
    if _find("tc") is None:
        return Finding("tc is missing", "as root: apt-get install iproute2")
    present = _qdiscs_present()
    if present is None:
        return Finding("not tried: no network namespace to try in", "run as root")
    absent = [other for other in QDISCS if other not in present]
    detail = f"kernel has {' '.join(present) or 'none'}, not {' '.join(absent)}".removesuffix(", not ")
    if wanted in present:
        return Finding(detail)
    return Finding(detail, _module_remedy(f"sch_{wanted}"))


def _module_remedy(*modules: str) -> str:
    """How to get kernel modules, where this kernel can have them at all."""
    names, kernel, otherwise = " ".join(modules), platform.release(), "virtual time (--on sim) needs none"
    folder = MODULES / kernel
    if not folder.is_dir():
        return f"kernel {kernel} loads no modules and lacks {names}: another kernel; {otherwise}"
    if all(any(folder.rglob(f"{module}.ko*")) for module in modules):
        return f"as root: modprobe --all {names}; {otherwise}"
    if "ubuntu" in (_text("/etc/os-release") or "").lower():
        return f"as root: apt-get install linux-modules-extra-{kernel}; then modprobe --all {names}; {otherwise}"
    return f"kernel {kernel} comes without {names}: another kernel; {otherwise}"


def _congestion_control() -> Finding:
    current = _text("/proc/sys/net/ipv4/tcp_congestion_control")
    available = _text("/proc/sys/net/ipv4/tcp_available_congestion_control")
    if current is None or available is None:
        return Finding("no Linux TCP settings to read", "run on Linux")
    return Finding(f"{current} is in use; available: {available}")


def _udp_offload() -> Finding:
    """Four datagrams in one send, received as one bundle that names its segment size."""
    segment_bytes, segments = 1000, 4
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(2.0)
        try:
            receiver.setsockopt(SOL_UDP, UDP_GRO, 1)
            sender.setsockopt(SOL_UDP, UDP_SEGMENT, segment_bytes)
            sender.sendto(bytes(segment_bytes * segments), receiver.getsockname())
            data, control, _, _ = receiver.recvmsg(65_536, socket.CMSG_SPACE(4))
        except OSError as error:
            why = error.strerror or str(error)
            return Finding(f"refused: {why}", "Linux 5.0 or newer; runs work without")
    sizes = [struct.unpack("i", value[:4])[0] for level, kind, value in control if (level, kind) == (SOL_UDP, UDP_GRO)]
    if len(data) == segment_bytes * segments and sizes == [segment_bytes]:
        return Finding(f"{segments} datagrams in one send, one bundle received")
    return Finding("bundles are taken apart on the way", "runs work without")


def _priority() -> Finding:
    """What carries a stream's priority class on its way: see `switchagg.priority`."""
    from emulation.testbed.mininet.shaping import u32_missing
    from transport.links.udp_link import takes_socket_priority

    marks = "DSCP and SO_PRIORITY" if takes_socket_priority() else "DSCP, no SO_PRIORITY (Linux 6.14 or newer)"
    if _find("tc") is None:
        return Finding(f"packets carry {marks}; tc is missing", "apt-get install iproute2")
    if reason := u32_missing():
        why = f"packets carry {marks}; no queue that reads it: {reason}"
        return Finding(why, _module_remedy("sch_htb", "cls_u32"))
    return Finding(f"packets carry {marks}; HTB classes by DSCP (u32)")


def _marking() -> Finding:
    """Which queues mark packets instead of dropping them: the kernel's own, or our program before a shaper."""
    from emulation.testbed.mininet.shaping import marking_missing, qdisc_missing

    if _find("tc") is None:
        return Finding("tc is missing", "apt-get install iproute2")
    qdiscs = [name for name in ("codel", "fq_codel", "pie") if qdisc_missing(name) is None]
    kinds = f"the kernel's queues that mark: {', '.join(qdiscs) or 'none'}"
    if reason := marking_missing():
        return Finding(f"{kinds}; links in Mininet can't: {reason}", "--on sim")
    return Finding(f"{kinds}; links in Mininet do it by BPF")


# ---- other data planes


def _load_xdp_program() -> int:
    """Load `return XDP_PASS` into the kernel and drop it again. 0, or the errno."""
    number = _BPF_SYSCALL.get(platform.machine())
    if number is None or sys.platform != "linux":
        return errno.ENOSYS
    code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, _XDP_PASS, 0x95, 0, 0, 0))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack("=IIQQ", _BPF_PROG_TYPE_XDP, 2, ctypes.addressof(code), ctypes.addressof(licence))
    union = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(ctypes.c_long(number), ctypes.c_int(_BPF_PROG_LOAD), union, ctypes.c_uint(128))
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return 0


def _xdp() -> Finding:
    btf = "BTF present" if Path("/sys/kernel/btf/vmlinux").exists() else "no BTF"
    code = _load_xdp_program()
    if code == 0:
        return Finding(f"the kernel takes XDP programs; {btf}")
    remedy = (
        "run as root, or with CAP_BPF and CAP_NET_ADMIN" if code == errno.EPERM else "a kernel with CONFIG_BPF_SYSCALL"
    )
    return Finding(f"refused: {os.strerror(code)}; {btf}", remedy)


def _xdp_on_veth() -> Finding:
    """Loads and attaches the very programs, between two interfaces that vanish with the probe."""
    if _find("ip") is None or _find("tc") is None:
        return Finding("ip or tc is missing", "as root: apt-get install iproute2")
    probe = f"{shlex.quote(sys.executable)} -P -m emulation.testbed.mininet.xdp_probe || :"
    answer = _in_own_network(probe)
    if answer is None:
        return Finding("not tried: no network namespace to try in", "run as root")
    if " on veth, delivery by " in answer:
        return Finding(answer)
    remedy = "a kernel with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_ACT and CONFIG_VETH"
    if "not permitted" in answer:
        remedy = "run as root, or with CAP_BPF and CAP_NET_ADMIN"
    return Finding(answer or "the probe said nothing", remedy)


def _libbpf() -> Finding:
    from switchagg.native.libbpf import libbpf

    try:
        libbpf()
    except SwitchaggError as error:
        return Finding(str(error), "as root: apt-get install libbpf1 (before: libbpf0)")
    return Finding("libbpf.so.1")


def _xdp_programs() -> Finding:
    from switchagg.native import bpf, library

    names = (bpf.MTU_1500, bpf.JUMBO, bpf.LOSS)
    absent = [name for name in names if not (bpf.FOLDER / name).exists()]
    if absent:
        remedy = f"as root: apt-get install clang libbpf-dev; then {library.REMEDY}"
        return Finding(f"not built: {', '.join(absent)}", remedy)
    return Finding(f"built: {', '.join(names)}")


# ---- the compiled core


def _compiles(compiler: str, *flags: str, source: str = "int answer(void) { return 42; }") -> bool:
    """Whether a compiler turns a line of C into something."""
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "made"
        (Path(folder) / "probe.c").write_text(source + "\n", encoding="ascii")
        return _answer(compiler, *flags, "-o", str(binary), f"{folder}/probe.c") is not None and binary.exists()


def _compiler() -> Finding:
    remedy = "as root: apt-get install gcc libc6-dev, or pip install ziglang; then make native"
    compilers = [compiler for compiler in ("cc", "gcc", "clang") if _find(compiler)]
    if not compilers:
        return Finding("no cc, gcc or clang on PATH", remedy)
    flags = ("-shared", "-fPIC", "-include", "stdint.h", "-include", "sys/socket.h", "-include", "linux/types.h")
    for compiler in compilers:
        if _compiles(compiler, *flags):
            version = (_answer(compiler, "--version") or compiler).splitlines()[0]
            return Finding(version)
    return Finding(f"{', '.join(compilers)} can't compile a line that includes C's headers", remedy)


def _compiled_core() -> Finding:
    from switchagg.native import headers, library

    if reason := library.missing():
        detail, _, remedy = reason.partition("; ")
        return Finding(detail, remedy or library.REMEDY)
    detail = f"{library.load()._name}, ABI {headers.SA_ABI}, loops use {library.vectors()}"
    return Finding(detail)


BPF_SOURCE = "#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>"


def _clang_for_bpf() -> Finding:
    remedy = "as root: apt-get install clang libbpf-dev; then make native"
    if _find("clang") is None:
        return Finding("clang is not on PATH", remedy)
    includes = [f"-I{folder}" for folder in Path("/usr/include").glob("*-linux-gnu")]  # asm/types.h, as Debian has it
    if not _compiles("clang", "-target", "bpf", "-c", *includes, source=BPF_SOURCE):
        bare = _compiles("clang", "-target", "bpf", "-c")
        return Finding("libbpf's headers are missing" if bare else "this clang has no BPF target", remedy)
    return Finding((_answer("clang", "--version") or "clang").splitlines()[0])


def _fuzzer() -> Finding:
    source = "int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size) { return data && size > 9; }"
    if _find("clang") is None:
        return Finding("clang is not on PATH", "as root: apt-get install clang libclang-rt-dev")
    if not _compiles("clang", "-fsanitize=fuzzer,address,undefined", source=source):
        remedy = "as root: apt-get install libclang-rt-dev (or libclang-rt-14-dev, by clang's version)"
        return Finding("clang can't link its fuzzer and sanitizers", remedy)
    return Finding("clang links its fuzzer, AddressSanitizer and UBSan")


def _program(program: str, remedy: str) -> Finding:
    path = _find(program)
    return Finding(path or f"{program} is not on PATH", "" if path else remedy)


def _rdma() -> Finding:
    """RDMA works without: this is about NICs."""
    from transport.rdma import hardware

    try:
        devices = hardware.devices()
    except SwitchaggError as error:
        what, _, remedy = str(error).rpartition("; ")
        return Finding(what, remedy)
    if not devices:
        return Finding("no device", hardware.NO_DEVICE)
    return Finding(", ".join(devices))


def _p4_engine() -> Finding:
    """A C compiler makes it fast; without one it runs on Python."""
    from switchagg.dataplane.p4 import p4_plane

    if reason := p4_plane.missing():
        return Finding(reason, "pip install 'switchagg[p4]', or make setup")
    back_end = "C" if any(map(_find, ("cc", "gcc", "clang"))) else "Python (slow: no C compiler)"
    return Finding(f"programs become {back_end}; lark {metadata.version('lark')}")


def _verified_sums() -> Finding:
    """What a rank that is started here notices of sums that somebody changes."""
    if os.environ.get("SWITCHAGG_VERIFY", "").strip() == "off":
        return Finding("off (SWITCHAGG_VERIFY)")
    from transport.meshes.job_key import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, job_token

    try:
        token = job_token()
    except SwitchaggError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding(what, remedy or f"give {TOKEN_FILE_VARIABLE} a file that can be read")
    if token:
        return Finding("on, key: token")
    return Finding(f"on, key: job name, or PyTorch's token; by hand only {TOKEN_VARIABLE} keeps forgers out")


def _authenticated_packets() -> Finding:
    """Whether a rank that is started here and its switch know each other's packets."""
    folder, choice = (os.environ.get(f"SWITCHAGG_{name}", "").strip() for name in ("KEYS", "AUTHENTICATE"))
    if not folder:
        what = "off, no keys: who can send from a rank's or the switch's address may forge packets"
        return Finding(what, "switchagg keys FOLDER, then SWITCHAGG_KEYS=FOLDER" if choice == "on" else "")
    from transport.zeromq.keys import as_keys  # needs pyzmq

    try:
        as_keys(folder)
    except SwitchaggError as error:
        what, _, remedy = str(error).partition("; ")
        return Finding(what, remedy or "make keys with `switchagg keys FOLDER`")
    if choice == "off":
        return Finding("off (SWITCHAGG_AUTHENTICATE); over ZeroMQ all the same, which encrypts")
    return Finding("on, over UDP and ZeroMQ, at a switch that has keys too")


P4_REMEDY = "see p4.org (Debian, Ubuntu: packages of the p4lang project)"
PROBES: dict[str, tuple[str, Callable[[], Finding]]] = {
    "Python": (EVERYTHING, _python),
    "numpy": (EVERYTHING, lambda: _package("numpy", "numpy")),
    "PyTorch": (EVERYTHING, _torch),
    "pyzmq": (EVERYTHING, lambda: _package("pyzmq", "zmq")),
    "msgspec": (EVERYTHING, lambda: _package("msgspec", "msgspec")),
    "verified sums": ("noticing that a switch, a wire or a forger changed a sum", _verified_sums),
    "authenticated packets": ("dropping packets that a rank or its switch didn't send", _authenticated_packets),
    "root": ("Mininet", _root),
    "user namespaces": ("Mininet without root", _user_namespaces),
    "Mininet": ("Mininet", _mininet),
    "qdisc htb": ("links with a rate in Mininet", lambda: _qdisc("htb")),
    "qdisc netem": ("delay and faults in Mininet", lambda: _qdisc("netem")),
    "priority": ("[topology] priority_queues in Mininet", _priority),
    "ECN marks": ("[topology] ecn_bytes in Mininet", _marking),
    "TCP": ("host allreduce in Mininet", _congestion_control),
    "UDP GSO/GRO": ("speed: 10 to 30 times cheaper packets", _udp_offload),
    "C compiler": ("building the compiled core", _compiler),
    "compiled core": ("host methods; speed: switch and workers in C", _compiled_core),
    "fuzzer": ("tests of the compiled core on made-up packets", _fuzzer),
    "XDP": (XDP_PLANE, _xdp),
    "clang for BPF": ("building the XDP programs", _clang_for_bpf),
    "XDP programs": (XDP_PLANE, _xdp_programs),
    "libbpf": (XDP_PLANE, _libbpf),
    "XDP on veth": (XDP_PLANE, _xdp_on_veth),
    "P4 engine": ("switchagg p4, the data plane p4", _p4_engine),
    "bmv2": (f"{BESIDES} the data plane bmv2, for conformance", lambda: _program("simple_switch", P4_REMEDY)),
    "p4c": (f"{BESIDES} P4 programs on bmv2", lambda: _program("p4c", P4_REMEDY)),
    "RDMA hardware": ("RDMA on hardware (SWITCHAGG_RDMA_PROVIDER=verbs); in user space it works without", _rdma),
}
"""Each thing, what it is needed for, and how it is tried."""
SLOW = ("PyTorch", "XDP on veth", "fuzzer", "clang for BPF")
"""Those that are begun first: processes, which run while the others import what they look at."""


def check(name: str) -> MachineCheck:
    """One of PROBES; a probe's own fault is a finding, too."""
    needed_for, probe = PROBES[name]
    try:
        finding = probe()
    except Exception as error:
        finding = Finding(f"the probe failed: {type(error).__name__}: {error}", "please report this line", "unknown")
    return MachineCheck(name, finding.ok, finding.detail, finding.remedy, finding.needed_for or needed_for)


def diagnose() -> list[MachineCheck]:
    """Look at everything, in the order of `PROBES`."""
    netns.find_programs()  # as runs in Mininet do
    with ThreadPoolExecutor(max_workers=8) as pool:
        checks = {name: pool.submit(check, name) for name in sorted(PROBES, key=lambda name: name not in SLOW)}
        return [checks[name].result() for name in PROBES]


def exit_code(findings: list[MachineCheck]) -> int:
    """1 if something is missing that every run needs, else 0."""
    return int(any(not finding.ok and finding.needed_for == EVERYTHING for finding in findings))


def as_json(findings: list[MachineCheck]) -> str:
    """A JSON object: `ready` (bool) and `findings`, one object each, with the fields of `Finding`."""
    return json.dumps(
        {"ready": exit_code(findings) == 0, "findings": [asdict(finding) for finding in findings]}, indent=2
    )


def _mark(finding: MachineCheck) -> tuple[str, str]:
    """What stands before a finding, and its style."""
    if finding.ok:
        return "yes", "green"
    if finding.needed_for.startswith(BESIDES):
        return "no", "dim"
    return "NO", "bold red" if finding.needed_for == EVERYTHING else "yellow"


def print_table(findings: list[MachineCheck]) -> None:
    """A table of what is there and what is not, then the remedies, then what to run."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "", "found", "needed for"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(Text(*_mark(finding)), Text(finding.name), Text(finding.detail), Text(finding.needed_for, "dim"))
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(table)
    console.print("yes: it is there; NO: what the last column names cannot run; no: nothing needs it", style="dim")
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        console.print("\nHow to get what is missing:")
    for finding in missing:
        console.print(Text(f"  {finding.name}: {finding.remedy}"), soft_wrap=True)
    console.print(f"\n{conclusion(findings)}", soft_wrap=True)


def conclusion(findings: list[MachineCheck]) -> str:
    """One line: which backends can run here."""
    has = {finding.name: finding.ok for finding in findings}
    if exit_code(findings):
        needed = [finding.name for finding in findings if not finding.ok and finding.needed_for == EVERYTHING]
        return f"Nothing can run here yet; missing: {', '.join(needed)}."
    if not (has["Mininet"] and has["qdisc htb"] and (has["root"] or has["user namespaces"])):
        return "Runs in virtual time work here (--on sim); runs in Mininet do not."
    if has["root"]:
        return "Runs in Mininet and in virtual time work here."
    return "Runs in virtual time work here, and runs in Mininet with --on mininet, in a user namespace."


def run_doctor(json_wanted: bool = False) -> int:
    """Body of `switchagg doctor`: print the findings as a table or as JSON; the exit code."""
    findings = diagnose()
    if json_wanted:
        print(as_json(findings))
    else:
        print_table(findings)
    return exit_code(findings)
