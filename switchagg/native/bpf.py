"""BPF from Python: libbpf.so.1 through ctypes. Loads our objects, attaches them, talks to their maps.

Nothing is pinned and everything is attached by a file descriptor of this process, so the kernel detaches it all when
the process ends, however it ends; only on kernels before 6.6 does the program at tc ingress need a filter that stays,
and the next start removes it. Works in the network namespace of the calling thread. A refusal raises SwitchaggError
with one line that names what BPF needs and is missing.
"""

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from switchagg.errors import SwitchaggError
from switchagg.native import headers
from switchagg.native.libbpf import (
    PERMISSION,
    LinkOptions,
    MapInfo,
    ProgramInfo,
    TcHook,
    TcOptions,
    TestOptions,
    libbpf,
    why,
)
from switchagg.native.library import REMEDY

FOLDER = Path(__file__).parent
MTU_1500 = "xdp_mtu1500.bpf.o"
JUMBO = "xdp_jumbo.bpf.o"
LOSS = "loss.bpf.o"

XDP_DROP = 1
XDP_PASS = 2
TC_SHOT = 2
XdpConfiguration = headers.struct("sa_xdp_configuration")
_Loss = headers.struct("sa_loss")
F_LOCK = 4
"""Flag of a map's lookup and update: hold the value's spin lock."""

_PROGRAM_TYPES = {"tc": 3, "XDP": 6}
_MAP_ARRAY = 2
_ATTACH_XDP = 37
_ATTACH_TCX_INGRESS = 46
_NATIVE, _GENERIC, _OFFLOADED = 4, 2, 8
_TC_INGRESS, _TC_REPLACE = 1, 1
_TC_PRIORITY = 0x5341
_LOG_BYTES = 1 << 20


def missing(objects: Sequence[str] = (MTU_1500, JUMBO)) -> str:
    """Why this process can't run our BPF programs, with what to do; "" if it can."""
    try:
        library = libbpf()
    except SwitchaggError as error:
        return str(error)
    for name in objects:
        if not (FOLDER / name).exists():
            return f"{name} was not built; install clang and libbpf-dev, then {REMEDY}"
    if not _capable():
        return PERMISSION
    descriptor = library.bpf_map_create(_MAP_ARRAY, b"sa_probe", 4, 8, 1, None)
    if descriptor < 0:
        return (
            PERMISSION if -descriptor in (errno.EPERM, errno.EACCES) else f"this kernel has no BPF: {why(descriptor)}"
        )
    os.close(descriptor)
    for what, number in _PROGRAM_TYPES.items():
        answer = library.libbpf_probe_bpf_prog_type(number, None)
        if answer <= 0:
            return (
                PERMISSION if answer in (-errno.EPERM, -errno.EACCES) else f"this kernel has no BPF programs for {what}"
            )
    return ""


def _capable() -> bool:
    """Whether the kernel would let us: it answers some questions differently to others instead of refusing them."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    effective = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    all_users = Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]
    network_admin, system_admin, bpf = (effective >> number & 1 for number in (12, 21, 39))
    return bool(all_users and network_admin and (bpf or system_admin))


def require(objects: Sequence[str] = (MTU_1500, JUMBO)) -> None:
    """Raise SwitchaggError with the line of `missing`, unless there is none."""
    if reason := missing(objects):
        raise SwitchaggError(f"BPF: {reason}")


def cpus() -> int:
    """How many values a per-CPU map holds under each key."""
    return int(libbpf().libbpf_num_possible_cpus())


class BpfMap:
    """A map of a loaded object; keys and values are bytes as the program's struct has them."""

    def __init__(self, name: str, descriptor: int, value_bytes: int) -> None:
        self.name = name
        self.value_bytes = value_bytes
        self._descriptor = descriptor

    def lookup(self, key: int, *, flags: int = 0, per_cpu: bool = False) -> bytes | None:
        """The value, or None if there is none. per_cpu: one value after the other, each padded to 8 bytes."""
        size = cpus() * _padded(self.value_bytes) if per_cpu else self.value_bytes
        value = ctypes.create_string_buffer(size)
        done = libbpf().bpf_map_lookup_elem_flags(self._descriptor, _key(key), value, flags)
        if done == -errno.ENOENT:
            return None
        if done < 0:
            raise SwitchaggError(f"BPF map {self.name}: lookup of {key}: {why(done)}")
        return value.raw

    def update(self, key: int, value: bytes, *, flags: int = 0) -> None:
        """Set a value, all CPUs' at once for a per-CPU map (each padded to 8 bytes)."""
        done = libbpf().bpf_map_update_elem(self._descriptor, _key(key), value, flags)
        if done < 0:
            raise SwitchaggError(f"BPF map {self.name}: update of {key}: {why(done)}")

    def delete(self, key: int) -> None:
        """Forget a key, if it is there."""
        done = libbpf().bpf_map_delete_elem(self._descriptor, _key(key))
        if done < 0 and done != -errno.ENOENT:
            raise SwitchaggError(f"BPF map {self.name}: removal of {key}: {why(done)}")


class BpfObject:
    """A loaded object: its programs and maps live as long as this, or what they are attached to.

    name: a file in this folder. entries: map -> how many it holds. configuration: contents of .rodata. values: map ->
    bytes its value must have. Raises SwitchaggError, with the verifier's last lines where the kernel refuses it.
    """

    def __init__(
        self,
        name: str,
        *,
        entries: Mapping[str, int] | None = None,
        configuration: bytes = b"",
        values: Mapping[str, int] | None = None,
    ) -> None:
        require((name,))
        library = libbpf()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        self._handle = library.bpf_object__open(str(FOLDER / name).encode())
        if not self._handle:
            raise SwitchaggError(f"BPF: {name} can't be read: {why(-ctypes.get_errno())}; {REMEDY}")
        self._name = name
        try:
            self._prepare(name, entries or {}, configuration, values or {})
            program = library.bpf_object__next_program(self._handle, None)
            while program:
                library.bpf_program__set_log_buf(program, log, _LOG_BYTES)
                program = library.bpf_object__next_program(self._handle, program)
            done = library.bpf_object__load(self._handle)
            if done < 0:
                words = [line for line in log.value.decode(errors="replace").splitlines() if line.strip()]
                reason = next((line for line in reversed(words) if not line.startswith("processed ")), "")
                raise SwitchaggError(f"BPF: this kernel refuses {name}: {why(done)}{': ' + reason if reason else ''}")
        except BaseException:
            self.close()
            raise

    def _prepare(self, name: str, entries: Mapping[str, int], configuration: bytes, values: Mapping[str, int]) -> None:
        library = libbpf()
        pointer = library.bpf_object__next_map(self._handle, None)
        while pointer:
            label = library.bpf_map__name(pointer).decode()
            if label in entries:
                library.bpf_map__set_max_entries(pointer, entries[label])
            wrong = label in values and library.bpf_map__value_size(pointer) != values[label]
            if label.endswith(".rodata") and configuration:
                wrong = library.bpf_map__set_initial_value(pointer, configuration, len(configuration)) < 0
            if wrong:
                raise SwitchaggError(f"BPF: {name} was built from other sources ({label}); {REMEDY}")
            pointer = library.bpf_object__next_map(self._handle, pointer)

    def _require(self, pointer: int | None, name: str) -> None:
        if not pointer:
            raise SwitchaggError(f"BPF: {self._name} was built from other sources (it has no {name}); {REMEDY}")

    def program(self, name: str) -> int:
        """Descriptor of a program; valid until `close`."""
        pointer = libbpf().bpf_object__find_program_by_name(self._handle, name.encode())
        self._require(pointer, name)
        return int(libbpf().bpf_program__fd(pointer))

    def map(self, name: str) -> BpfMap:
        """A map; usable until `close`."""
        pointer = libbpf().bpf_object__find_map_by_name(self._handle, name.encode())
        self._require(pointer, name)
        return BpfMap(name, libbpf().bpf_map__fd(pointer), libbpf().bpf_map__value_size(pointer))

    def close(self) -> None:
        """Close all descriptors; again is allowed. A program stays attached until its link is closed."""
        handle, self._handle = self._handle, None
        if handle:
            libbpf().bpf_object__close(handle)


def run(program: int, frame: bytes, *, repeat: int = 1, room: int = 0) -> tuple[int, bytes, int]:
    """Run a program on a frame, with no network (BPF_PROG_TEST_RUN): its verdict, the frame after it, ns per run.

    room: bytes the frame may be afterwards; 0: as before. Raises SwitchaggError: the kernel takes no such frame.
    """
    out = ctypes.create_string_buffer(max(room, len(frame)))
    options = TestOptions(sz=ctypes.sizeof(TestOptions), data_size_in=len(frame), data_size_out=len(out), repeat=repeat)
    options.data_in = ctypes.cast(ctypes.c_char_p(frame), ctypes.c_void_p)
    options.data_out = ctypes.cast(out, ctypes.c_void_p)
    done = libbpf().bpf_prog_test_run_opts(program, ctypes.byref(options))
    if done < 0:
        raise SwitchaggError(f"BPF: a test run on a frame of {len(frame)} bytes: {why(done)}")
    return options.retval, out.raw[: options.data_size_out], options.duration


class BpfAttachment:
    """Something attached; `close` takes it off, and so does the end of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Detach; again is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class _Filter(BpfAttachment):
    """The program as a filter of clsact: kernels before 6.6. It survives SIGKILL; `attach_ingress` removes such."""

    def __init__(self, index: int) -> None:
        super().__init__(-1)
        self._index = index

    def close(self) -> None:
        index, self._index = self._index, 0
        if index:
            _remove_filter(index)


def attach_xdp(program: int, name: str, index: int, *, native: bool) -> BpfAttachment:
    """Attach to an interface, in its driver or generically. Raises SwitchaggError; OSError (EOPNOTSUPP): not native."""
    if (other := attached(index)) is not None:
        raise SwitchaggError(
            f"{name} already has an XDP program, {other}; choose another interface, end the process that holds it "
            f"(another switch?), or, where none does: ip link set dev {name} xdp off"
        )
    options = LinkOptions(sz=ctypes.sizeof(LinkOptions), flags=_NATIVE if native else _GENERIC)
    descriptor = libbpf().bpf_link_create(program, index, _ATTACH_XDP, ctypes.byref(options))
    if descriptor >= 0:
        return BpfAttachment(descriptor)
    if native and -descriptor == errno.EOPNOTSUPP:
        raise OSError(errno.EOPNOTSUPP, f"{name}: its driver has no native XDP")
    raise SwitchaggError(f"{name}: {_why_not_attached(-descriptor)}")


def attached(index: int) -> str | None:
    """The XDP program an interface has, as a text, or None."""
    number = ctypes.c_uint32()
    for mode in (0, _NATIVE, _GENERIC, _OFFLOADED):
        if libbpf().bpf_xdp_query_id(index, mode, ctypes.byref(number)) < 0:
            return None  # attaching will report what is wrong with it
        if number.value:
            return f"{_program_name(number.value)} (id {number.value})"
    return None


def at_ingress(index: int) -> list[str]:
    """Names of the programs at tc ingress of an interface: those by link, and ours as a filter."""
    numbers = (ctypes.c_uint32 * 64)()
    count = ctypes.c_uint32(len(numbers))
    if libbpf().bpf_prog_query(index, _ATTACH_TCX_INGRESS, 0, None, numbers, ctypes.byref(count)) < 0:
        count.value = 0  # an older kernel
    filter_, hook = TcOptions(sz=ctypes.sizeof(TcOptions), handle=1, priority=_TC_PRIORITY), _hook(index)
    if libbpf().bpf_tc_query(ctypes.byref(hook), ctypes.byref(filter_)) == 0:
        numbers[count.value] = filter_.prog_id
        count.value += 1
    return [_program_name(number) for number in numbers[: count.value]]


def attach_ingress(program: int, name: str, index: int, *, tcx: bool = True) -> BpfAttachment:
    """Attach to tc ingress of an interface. tcx: by a link where the kernel has them (6.6). Raises SwitchaggError."""
    if tcx:
        descriptor = libbpf().bpf_link_create(program, index, _ATTACH_TCX_INGRESS, None)
        if descriptor >= 0:
            return BpfAttachment(descriptor)
        if -descriptor != errno.EINVAL:  # an older kernel doesn't know this kind of link
            raise SwitchaggError(f"{name}: tc ingress: {why(descriptor)}")
    hook = _hook(index)
    done = libbpf().bpf_tc_hook_create(ctypes.byref(hook))
    if done < 0 and done != -errno.EEXIST:
        raise SwitchaggError(
            f"{name}: this kernel has neither tcx (6.6) nor the queueing discipline clsact: {why(done)}"
        )
    _clear_leftover(name, index)
    filter_ = TcOptions(sz=ctypes.sizeof(TcOptions), prog_fd=program, handle=1, priority=_TC_PRIORITY)
    done = libbpf().bpf_tc_attach(ctypes.byref(hook), ctypes.byref(filter_))
    if done < 0:
        raise SwitchaggError(f"{name}: tc ingress: {why(done)}")
    return _Filter(index)


def _clear_leftover(name: str, index: int) -> None:
    """Remove the filter of a switch that was killed: ours by name and map, its process dead. Raises SwitchaggError."""
    query = TcOptions(sz=ctypes.sizeof(TcOptions), handle=1, priority=_TC_PRIORITY)
    hook = _hook(index)
    if libbpf().bpf_tc_query(ctypes.byref(hook), ctypes.byref(query)) < 0:
        return
    owner = _owner_of(query.prog_id)
    if owner is None or started(owner[0]) == owner[1]:
        whose = "of a program that is not ours" if owner is None else f"of the switch with process id {owner[0]}"
        raise SwitchaggError(f"{name}: tc ingress has a filter at priority {_TC_PRIORITY} {whose}")
    _remove_filter(index)


def _remove_filter(index: int) -> None:
    hook = _hook(index)
    filter_ = TcOptions(sz=ctypes.sizeof(TcOptions), handle=1, priority=_TC_PRIORITY)
    libbpf().bpf_tc_detach(ctypes.byref(hook), ctypes.byref(filter_))


def _owner_of(number: int) -> tuple[int, int] | None:
    """(process id, start) in the configuration of one of our programs; None for any other."""
    maps = (ctypes.c_uint32 * 16)()
    info = _program_info(number, maps)
    if info is None or info.name != b"sa_deliver":
        return None
    for map_number in maps[: info.nr_map_ids]:
        descriptor = libbpf().bpf_map_get_fd_by_id(map_number)
        if descriptor < 0:
            continue
        try:
            details = MapInfo()
            size = ctypes.c_uint32(ctypes.sizeof(details))
            libbpf().bpf_obj_get_info_by_fd(descriptor, ctypes.byref(details), ctypes.byref(size))
            if details.name.endswith(b".rodata") and details.value_size == ctypes.sizeof(XdpConfiguration):
                value = ctypes.create_string_buffer(details.value_size)
                libbpf().bpf_map_lookup_elem_flags(descriptor, _key(0), value, 0)
                configuration = XdpConfiguration.from_buffer_copy(value.raw)
                return configuration.owner_pid, configuration.owner_start
        finally:
            os.close(descriptor)
    return None


def _program_name(number: int) -> str:
    info = _program_info(number)
    return info.name.decode(errors="replace") if info else "unnamed"


def _program_info(number: int, maps: "ctypes.Array[ctypes.c_uint32] | None" = None) -> ProgramInfo | None:
    descriptor = libbpf().bpf_prog_get_fd_by_id(number)
    if descriptor < 0:
        return None
    try:
        info = ProgramInfo()
        if maps is not None:
            info.nr_map_ids, info.map_ids = len(maps), ctypes.addressof(maps)
        size = ctypes.c_uint32(ctypes.sizeof(info))
        done = libbpf().bpf_obj_get_info_by_fd(descriptor, ctypes.byref(info), ctypes.byref(size))
        return None if done < 0 else info
    finally:
        os.close(descriptor)


def packed_address(host: str) -> int:
    """An IPv4 address as the number that its bytes on the wire are here."""
    return int.from_bytes(socket.inet_aton(host), sys.byteorder)


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def seeded(seed: int, *places: int) -> int:
    """A generator's first state, never 0, from a seed and where it stands (port, CPU): splitmix64."""
    mask = (1 << 64) - 1
    state = seed & mask
    for place in (0, *places):
        state = (state + 0x9E3779B97F4A7C15 + place) & mask
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state or 1


def threshold(probability: float) -> int:
    """A probability in units of 2^-32, as programs compare it. Raises ValueError outside 0 to 1."""
    if not 0 <= probability <= 1:
        raise ValueError(f"probability {probability}: 0 to 1")
    return min(round(probability * 2**32), 2**32 - 1)


class LossProgram:
    """Loses packets of every kind on their way into an interface, one by one, from `with` until its end.

    Native XDP: bundles are taken apart first, so a loss is one packet's. On veth this turns segmentation offload of the
    other end off for the time. Every CPU draws from a seeded generator of its own; the kernel chooses which packets a
    CPU meets. Works in the caller's network namespace. Raises SwitchaggError.
    """

    def __init__(self, ifname: str, probability: float, seed: int) -> None:
        self._name = ifname
        self._object: BpfObject | None = BpfObject(LOSS, values={"losses": ctypes.sizeof(_Loss)})
        self._map = self._object.map("losses")
        self._link: BpfAttachment | None = None
        self._counts = (0, 0)
        states = [_Loss(state=seeded(seed, cpu), threshold=threshold(probability)) for cpu in range(cpus())]
        self._map.update(0, b"".join(map(bytes, states)))

    def __enter__(self) -> "LossProgram":
        assert self._object is not None
        try:
            self._link = attach_xdp(
                self._object.program("sa_lose"), self._name, interface_index(self._name), native=True
            )
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SwitchaggError(f"{error.strerror}, so loss can't act packet by packet") from error
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def counts(self) -> tuple[int, int]:
        """(passed, lost) so far; after the end, the last ones."""
        if self._object is not None:
            value = self._map.lookup(0, per_cpu=True) or b""
            size = ctypes.sizeof(_Loss)
            counts = [_Loss.from_buffer_copy(value, at) for at in range(0, len(value), size)]
            self._counts = (sum(count.passed for count in counts), sum(count.lost for count in counts))
        return self._counts

    def close(self) -> None:
        """Detach; again is allowed."""
        if self._link is not None:
            self._link.close()
        if self._object is not None:
            _ = self.counts
            self._object.close()
            self._object = None


def interface_index(name: str) -> int:
    """Index of an interface in the caller's namespace. Raises SwitchaggError."""
    library = ctypes.CDLL(None, use_errno=True)
    index = int(library.if_nametoindex(name.encode()))
    if not index:
        raise SwitchaggError(f"there is no interface {name!r} here")
    return index


def _hook(index: int) -> TcHook:
    return TcHook(sz=ctypes.sizeof(TcHook), ifindex=index, attach_point=_TC_INGRESS)


def _why_not_attached(number: int) -> str:
    if number in (errno.EPERM, errno.EACCES):
        return PERMISSION
    if number == errno.ERANGE:
        return "its MTU is too large for native XDP; lower it (ip link set mtu 3400), or run a switch for jumbo frames"
    if number in (errno.EBUSY, errno.EEXIST):
        return "it has an XDP program already"
    if number == errno.ENODEV:
        return "it has just vanished"
    return f"XDP can't be attached: {os.strerror(number)}"


def _key(key: int) -> "ctypes._CDataType":
    return ctypes.byref(ctypes.c_uint32(key))  # type: ignore[return-value]


def _padded(size: int) -> int:
    return (size + 7) // 8 * 8
