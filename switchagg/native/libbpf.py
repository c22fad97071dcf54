"""libbpf.so.1 as ctypes sees it: the functions and structures that `bpf.py` uses.

Every options structure begins with its size, so a newer library knows which fields we have: the first ones, up to the
last that we use.
"""

import ctypes
import errno
import os
from functools import lru_cache

from switchagg.errors import SwitchaggError
from switchagg.native.headers import structure

PERMISSION = "not permitted: run it as root (not of a user namespace), or give it CAP_BPF and CAP_NET_ADMIN"
_NO_OBJECT = (4000, 4001, 4003)
"""libbpf's own answers to a file: libelf can't read it, wrong format, wrong byte order."""


LinkOptions = structure("bpf_link_create_opts", "size_t sz; uint32_t flags")
TestOptions = structure(
    "bpf_test_run_opts",
    "size_t sz; void *data_in, *data_out; uint32_t data_size_in, data_size_out; void *ctx_in, *ctx_out;"
    "uint32_t ctx_size_in, ctx_size_out, retval; int repeat; uint32_t duration",
)
TcHook = structure("bpf_tc_hook", "size_t sz; int ifindex, attach_point; uint32_t parent")
TcOptions = structure("bpf_tc_opts", "size_t sz; int prog_fd; uint32_t flags, prog_id, handle, priority")
ProgramInfo = structure(
    "bpf_prog_info",  # the kernel fills in as much as it is asked for
    "uint32_t type, id; uint8_t tag[8]; uint32_t jited_prog_len, xlated_prog_len;"
    "uint64_t jited_prog_insns, xlated_prog_insns, load_time; uint32_t created_by_uid, nr_map_ids; uint64_t map_ids;"
    "char name[16]",
)
MapInfo = structure("bpf_map_info", "uint32_t type, id, key_size, value_size, max_entries, map_flags; char name[16]")


@lru_cache(maxsize=1)
def libbpf() -> ctypes.CDLL:
    """The library, its functions declared. Raises SwitchaggError where it is missing."""
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise SwitchaggError("libbpf.so.1 is missing; apt-get install libbpf1, or your system's libbpf 1.x") from None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("bpf_object__open", pointer, [ctypes.c_char_p]),
        ("bpf_object__load", number, [pointer]),
        ("bpf_object__close", None, [pointer]),
        ("bpf_object__find_program_by_name", pointer, [pointer, ctypes.c_char_p]),
        ("bpf_object__find_map_by_name", pointer, [pointer, ctypes.c_char_p]),
        ("bpf_object__next_map", pointer, [pointer, pointer]),
        ("bpf_object__next_program", pointer, [pointer, pointer]),
        ("bpf_program__set_log_buf", number, [pointer, pointer, ctypes.c_size_t]),
        ("bpf_program__fd", number, [pointer]),
        ("bpf_map__fd", number, [pointer]),
        ("bpf_map__name", ctypes.c_char_p, [pointer]),
        ("bpf_map__value_size", ctypes.c_uint32, [pointer]),
        ("bpf_map__set_max_entries", number, [pointer, ctypes.c_uint32]),
        ("bpf_map__set_initial_value", number, [pointer, pointer, ctypes.c_size_t]),
        ("bpf_map_lookup_elem_flags", number, [number, pointer, pointer, ctypes.c_uint64]),
        ("bpf_map_update_elem", number, [number, pointer, pointer, ctypes.c_uint64]),
        ("bpf_map_delete_elem", number, [number, pointer]),
        ("bpf_map_create", number, [number, ctypes.c_char_p, *[ctypes.c_uint32] * 3, pointer]),
        ("bpf_map_get_fd_by_id", number, [ctypes.c_uint32]),
        ("bpf_prog_get_fd_by_id", number, [ctypes.c_uint32]),
        ("bpf_obj_get_info_by_fd", number, [number, pointer, pointer]),
        ("bpf_link_create", number, [number, number, number, pointer]),
        ("bpf_prog_test_run_opts", number, [number, pointer]),
        ("bpf_prog_query", number, [number, number, ctypes.c_uint32, pointer, pointer, pointer]),
        ("bpf_xdp_query_id", number, [number, number, pointer]),
        ("bpf_tc_hook_create", number, [pointer]),
        ("bpf_tc_attach", number, [pointer, pointer]),
        ("bpf_tc_detach", number, [pointer, pointer]),
        ("bpf_tc_query", number, [pointer, pointer]),
        ("libbpf_num_possible_cpus", number, []),
        ("libbpf_probe_bpf_prog_type", number, [number, pointer]),
        ("libbpf_set_print", pointer, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.libbpf_set_print(None)  # it would write to stderr
    return library


def why(code: int) -> str:
    """The text that explains a negative answer of libbpf."""
    if -code in (errno.EPERM, errno.EACCES):
        return PERMISSION
    return "it is no BPF object" if -code in _NO_OBJECT else os.strerror(-code)
