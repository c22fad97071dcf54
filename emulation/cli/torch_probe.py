"""Whether PyTorch is there: its files, the packages that it needs, its libraries; in a third of an import's time.

Prints a line, "VERSION CUDA USABLE" and what is wrong with the version; raises where something is missing. `switchagg
doctor` runs it in a process of its own, as what it loads may end it.
"""

from __future__ import annotations

import ctypes
import os
import re
import runpy
from importlib import metadata

from transport.contracts.torch_version import too_old


def missing_files(name: str) -> list[str]:
    """The files of an installed package that aren't there; [] where nobody has listed them."""
    package = metadata.distribution(name)
    paths = [line.rsplit(",", 2)[0] for line in (package.read_text("RECORD") or "").splitlines()]
    root = str(package.locate_file(""))
    return [path for path in paths if not path.endswith(".pyc") and not os.path.exists(f"{root}/{path}")]


def gpus() -> int:
    """How many GPUs the CUDA driver has; 0 without one."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if cuda.cuInit(0) == cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def main() -> None:
    if missing := missing_files("torch"):
        raise FileNotFoundError(f"{len(missing)} files of torch are missing, like {missing[0]}")
    for requirement in metadata.requires("torch") or ():
        if ";" not in requirement:
            metadata.version(re.split(r"[^\w.-]", requirement)[0])
    folder = str(metadata.distribution("torch").locate_file("torch"))
    facts = runpy.run_path(f"{folder}/version.py")
    ctypes.CDLL(f"{folder}/lib/libtorch_python.so", ctypes.RTLD_GLOBAL)
    version, cuda = facts["__version__"], facts["cuda"]
    print(version, cuda, cuda is not None and gpus() > 0, too_old(version), flush=True)
    os._exit(0)  # taking the libraries down again takes as long as loading them


if __name__ == "__main__":
    main()
