"""What Python takes for granted of the C core, asked of the C compiler: ABI, structs, and the lengths of enums."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from switchagg.dataplane.native import RUN, NativeParent
from switchagg.description import WORDS
from switchagg.native import library, native_endpoint, programs
from transport.collectives import execution
from transport.links import native_udp
from transport.meshes import tcp_mesh
from transport.rdma import dcqcn, soft
from transport.rdma.verbs import QPState
from transport.switch import native_switch_loop as native_switch
from transport.switch import rdma_switch

CORE = Path(library.__file__).parent

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "sa_stream": library.NativeStream,
    "sa_job": library.NativeJob,
    "sa_parent": NativeParent,
    "sa_event": native_endpoint.NativeEvent,
    "sa_submission": native_endpoint.NativeSubmission,
    "sa_address": native_udp.NativeAddress,
    "sa_udp_options": native_udp.NativeUdpOptions,
    "sa_udp_state": native_udp.NativeUdpState,
    "sa_queue_config": native_switch.QueueConfig,
    "sa_impairment": native_switch.ImpairmentConfig,
    "sa_switch_config": native_switch.SwitchConfig,
    "sa_dcqcn_config": dcqcn.DcqcnConfig,
    "sa_dcqcn": dcqcn.DcqcnState,
    "sa_cnp_gate": dcqcn.CnpGate,
    "sa_uc_peer": rdma_switch.UcPeer,
    "sa_rdma_options": soft.NativeOptions,
    "sa_completion": soft.NativeCompletion,
    "sa_send_request": soft.NativeSend,
    "sa_receive_request": soft.NativeReceive,
    "sa_rdma_queue_pair": soft.NativeQueuePair,
    "sa_qp_attributes": soft.NativeAttributes,
    "sa_label": programs.NativeLabel,
    "sa_program": programs.NativeProgram,
    "sa_operations": programs.NativeOperations,
    "sa_mesh_event": tcp_mesh.MeshEvent,
    "sa_mesh_outgoing": tcp_mesh.MeshOutgoing,
}

NUMBERS = {
    "SA_ABI": library.ABI,
    "SA_OUTCOMES": len(library.OUTCOMES),
    "SA_OUTCOMES_ALL": len(library.OUTCOMES + library.LEAF_OUTCOMES + library.PARTIAL_OUTCOMES),
    "SA_ENDPOINT_COUNTERS": len(library.ENDPOINT_COUNTERS),
    "SA_UDP_COUNTERS": len(native_udp.UDP_COUNTERS),
    "SA_SWITCH_COUNTERS": len(native_switch.SWITCH_COUNTERS),
    "SA_UC_COUNTERS": len(rdma_switch.UC_COUNTERS),
    "SA_RDMA_COUNTERS": len(soft.COUNTERS),
    "SA_QP_COUNTERS": len(soft.QP_COUNTERS),
    **{f"SA_QPS_{state.name}": state.value for state in QPState},
    "SA_ALPHA_ONE": dcqcn.ALPHA_ONE,
    "SA_CNP_INTERVAL_NS": dcqcn.CNP_INTERVAL_NS,
    "SA_CALL_COMPLETED": native_endpoint.CALL_COMPLETED,
    "SA_STREAM_FAILED": native_endpoint.STREAM_FAILED,
    "SA_CALLS_DIFFER": native_endpoint.CALLS_DIFFER,
    "SA_WORDS": WORDS,
    "SA_FLOAT32": native_endpoint.DTYPES.index(np.dtype(np.float32)),
    "SA_FLOAT64": native_endpoint.DTYPES.index(np.dtype(np.float64)),
    "SA_INT32": native_endpoint.DTYPES.index(np.dtype(np.int32)),
    "SA_INT64": native_endpoint.DTYPES.index(np.dtype(np.int64)),
    "SA_UINT8": native_endpoint.DTYPES.index(np.dtype(np.uint8)),
    "SA_EACH_RANK": native_endpoint.EACH_RANK,
    "sizeof(struct sa_run)": RUN.itemsize,
    "SA_MESH_COUNTERS": len(tcp_mesh.COUNTERS),
    "SA_MESH_SENT": tcp_mesh.MESSAGE_SENT,
    "SA_MESH_GONE": tcp_mesh.PEER_LOST,
    "SA_MESH_WANTS_MEMORY": tcp_mesh.WANTS_MEMORY,
    "SA_COMBINE_MAX": programs.MAX,
    "SA_UNFIT_TWICE": programs.TWICE,
    "SA_UNFIT_SIZE": programs.SIZE,
    **{f"SA_NODE_{name}": kind for name, kind in execution.NODE_KINDS.items()},
}


def expected() -> dict[str, int]:
    """C expression -> what Python has for it."""
    found = dict(NUMBERS)
    for name, struct in STRUCTS.items():
        found[f"sizeof(struct {name})"] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            place = getattr(struct, field)
            found[f"offsetof(struct {name}, {field})"] = place.offset
            found[f"sizeof(((struct {name} *)0)->{field})"] = place.size
    for field in RUN.names or ():
        found[f"offsetof(struct sa_run, {field})"] = RUN.fields[field][1]  # type: ignore[index]
    return found


def test_ctypes_layouts_match_the_compiler_s(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    wanted = expected()
    lines = "\n".join(f'    printf("%llu\\n", (unsigned long long)({expression}));' for expression in wanted)
    core = (
        "roce/dcqcn",
        "rdma/rdma",
        "network/switch",
        "rdma/uc_switch",
        "worker/worker",
        "hosts/mesh",
        "hosts/compile",
    )
    headers = ("<stddef.h>", "<stdio.h>", *(f'"{name}.h"' for name in core))
    source = "".join(f"#include {header}\n" for header in headers)
    (tmp_path / "layout.c").write_text(f"{source}int main(void) {{\n{lines}\n    return 0;\n}}\n")
    built = subprocess.run(
        [compiler, "-std=gnu11", f"-I{CORE}", "layout.c", "-o", "layout"], cwd=tmp_path, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    said = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(wanted, map(int, said), strict=True)) == wanted


def test_functions_for_several_instruction_sets_are_such_as_clang_can_link() -> None:
    """Each has a resolver, which is global, and other files don't find those that aren't static."""
    declared = re.compile(r"^SA_VECTORISED ([^(]*?)(\w+)\(", re.MULTILINE)
    found = [one for path in sorted(CORE.rglob("*.c")) for one in declared.findall(path.read_text())]
    names = [name for _, name in found]
    assert len(names) > 20
    assert {name for name in names if names.count(name) > 1} == set()
    assert [name for kind, name in found if not kind.startswith("static ")] == []


def test_every_struct_that_names_a_ctypes_class_is_compared() -> None:
    """Headers say "Field by field as `X`"; the classes name their structs."""
    said = set()
    for header in CORE.rglob("*.h"):
        twins = re.findall(r"Field by field as `(?:\w+\.)?(\w+)`", header.read_text())
        said |= set(twins)
    assert said == {
        "NativeJob",
        "NativeUdpOptions",
        "NativeUdpState",
        "QueueConfig",
        "ImpairmentConfig",
        "SwitchConfig",
        "RUN",
        "DcqcnConfig",
        "UcPeer",
        "NativeOptions",
        "NativeCompletion",
        "NativeSend",
        "NativeReceive",
        "NativeQueuePair",
        "NativeAttributes",
        "NativeProgram",
        "MeshEvent",
        "MeshOutgoing",
    }
