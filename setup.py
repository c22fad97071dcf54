"""The build of the compiled core; everything else stands in pyproject.toml.

One shared library, loaded through ctypes (`switchagg/native/library.py`): it includes no Python header, so it serves
every interpreter. Without a C compiler the package installs all the same and runs on its Python loops. The XDP programs
are built where clang and libbpf's headers are; they are the same for every machine of one byte order.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("switchagg/native")
SOURCES = sorted(str(path) for path in FOLDER.glob("*.c") if not path.name.endswith(".bpf.c"))
HEADERS = sorted(str(path) for path in FOLDER.glob("*.h"))
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wall", "-Wextra"]
XDP_SOURCE = FOLDER / "xdp.bpf.c"
XDP_OBJECTS = {"xdp_mtu1500.bpf.o": "360", "xdp_jumbo.bpf.o": "2240"}  # name -> most elements per packet


class BuildNative(build_ext):
    """Builds a plain shared library, and the XDP programs beside it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def run(self) -> None:
        super().run()
        folder = FOLDER if self.inplace else Path(self.build_lib) / FOLDER
        clang = shutil.which("clang")
        if clang is None or not XDP_SOURCE.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, elements in XDP_OBJECTS.items():
            flags = ["-O2", "-g", "-Wall", "-target", "bpf", f"-DSA_ELEMENTS={elements}", f"-I{_multiarch_headers()}"]
            done = subprocess.run([clang, *flags, "-c", str(XDP_SOURCE), "-o", str(folder / name)])
            if done.returncode:
                print(f"warning: {name} was not built; the data plane xdp will say so", file=sys.stderr)


def _multiarch_headers() -> str:
    """Where Debian keeps asm/types.h, which clang's BPF target doesn't look for by itself."""
    return next((str(path.parent.parent) for path in sorted(Path("/usr/include").glob("*-linux-gnu/asm/types.h"))), ".")


setup(
    ext_modules=[
        Extension(
            "switchagg.native.libswitchagg",
            SOURCES,
            depends=HEADERS,
            extra_compile_args=FLAGS,
            extra_link_args=["-lm"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative},
)
