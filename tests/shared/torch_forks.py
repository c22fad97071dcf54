"""Python processes that have PyTorch, scikit-learn and our modules loaded when they begin: loading them takes six
seconds of processor time, of which the tests of ranks would spend most of theirs.

One process loads them, and forks itself whenever one is wanted. From there on a process is as any other: arguments,
environment, files, a `__main__` of its own, an end of its own. No module of ours reads the environment when it is
imported.
"""

import array
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHANNEL_BYTES = 1 << 18
PR_SET_CHILD_SUBREAPER = 36
ONE_AT_A_TIME = threading.Lock()


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each order that comes; returns in the new processes, with their order and files."""
    import sklearn.datasets  # noqa: F401  # of the workload digits
    import torch._dynamo  # what optimisers import
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import torch.nn.parallel  # noqa: F401

    import emulation.cli.main
    import emulation.testbed.trainers
    import transport

    for package in (transport, emulation.testbed.trainers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "testing" not in module.name and not module.name.endswith(("__main__", "torchft_group")):
                importlib.import_module(module.name)
    assert len(os.listdir("/proc/self/task")) == 1, "threads don't survive a fork"
    gc.freeze()  # collecting garbage would copy all the pages that are shared
    while True:
        order, files, _, _ = socket.recv_fds(channel, CHANNEL_BYTES, 3)
        if not order:
            os._exit(0)
        between = os.fork()
        if not between:
            pid = os.fork()
            if not pid:
                channel.close()
                return json.loads(order), list(array.array("i", files))
            channel.send(str(pid).encode())
            os._exit(0)  # and who ordered is the parent
        os.waitpid(between, 0)
        channel.send(b"")
        for file in files:
            os.close(file)


@functools.cache
def server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    theirs.close()
    return ours, process


def end() -> None:
    """Ends the process that forks, if there is one; the next `Forked` begins another."""
    if server.cache_info().currsize:
        channel, process = server()
        server.cache_clear()
        channel.close()
        process.wait()


class Forked(subprocess.Popen[Any]):
    """As Popen([sys.executable, *arguments]), of a file, -c or -m. inside: a process whose network and mount
    namespaces it joins; it leads a process group of its own there."""

    def __init__(self, args: Any, inside: int | None = None, **options: Any) -> None:
        self._inside = inside
        super().__init__(args, **options)

    def _execute_child(self, args: Any, *given: Any) -> None:
        _, _, _, _, folder, environment, _, _, _, *pipes = given[:15]
        files = [own if end == -1 else end for end, own in ((pipes[0], 0), (pipes[3], 1), (pipes[5], 2))]
        order = {
            "arguments": args[1:],
            "environment": dict(environment or os.environ),
            "folder": str(folder or os.getcwd()),
        }
        order["inside"] = self._inside
        with ONE_AT_A_TIME:
            channel, _ = server()
            adopt(True)
            try:
                socket.send_fds(channel, [json.dumps(order).encode()], files)
                self.pid = int(channel.recv(20))
                channel.recv(1)  # what was its parent has ended
            finally:
                adopt(False)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def adopt(on: bool) -> None:
    """Whether processes whose parents end become this process's children."""
    assert not ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def begin(order: dict[str, Any], files: list[int]) -> None:
    """Be the process that was ordered."""
    if (place := order["inside"]) is not None:
        os.setpgid(0, 0)
        namespaces = [os.open(f"/proc/{place}/ns/{name}", os.O_RDONLY) for name in ("net", "mnt")]
        assert not any(ctypes.CDLL(None).setns(namespace, 0) for namespace in namespaces)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, max(files) + 1)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    import torch.distributed

    torch.distributed.set_debug_level_from_env()  # as its import does
    with gloo_held():
        execute(order["arguments"], order["folder"])


@contextlib.contextmanager
def gloo_held() -> Iterator[None]:
    """Let no group of Gloo end before the program.

    Its end waits for its thread, which may need the GIL to let a tensor go. DDP's reducer keeps the GIL: where it was
    the last to have the group both wait forever, and a group that is left to the interpreter's end may abort that. Here
    Python is the last, which releases the GIL.
    """
    from torch.distributed import distributed_c10d

    make, groups = distributed_c10d._new_process_group_helper, []

    def made(*arguments: Any, **options: Any) -> Any:
        found = make(*arguments, **options)
        if distributed_c10d._world.pg_map.get(found[0], ("",))[0] == "gloo":
            groups.append(found[0])
        return found

    distributed_c10d._new_process_group_helper = made
    try:
        yield
    finally:
        groups.clear()


def execute(arguments: list[str], folder: str) -> None:
    """As the interpreter does with these."""
    first, *rest = arguments
    if first == "-m":
        sys.argv, sys.path[0] = rest, folder
        sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        sys.argv, sys.path[0], source, name = ["-c", *rest[1:]], "", rest[0], "<string>"
    else:
        sys.argv, sys.path[0], source, name = [first, *rest], os.path.dirname(first), Path(first).read_text(), first
    main = vars(sys.modules["__main__"])
    main["__file__"] = name
    exec(compile(source, name, "exec"), main)


if __name__ == "__main__":
    begin(*serve(socket.socket(fileno=int(sys.argv[1]))))
