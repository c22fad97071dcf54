"""The build of the compiled core; everything else stands in pyproject.toml.

One shared library, loaded through ctypes (`switchagg/native/library.py`): it includes no Python header, so it serves
every interpreter. Without a C compiler the package installs all the same; the switch runs on Python then. The XDP
programs are built where clang and libbpf's headers are; they are the same for every machine of one byte order. What was
built and what was not is said in one line each. In place, each file is replaced at once: a process that loads it
meanwhile gets the old one or the new one, and one that has it open keeps it. What `switchagg examples` lists goes into
the package too: examples/, and of tools/ what reads packets.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

FOLDER = Path("switchagg/native")
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wall", "-Wextra"]
FLAGS += ["-ffp-contract=off"]  # a fused multiply-add rounds once: other bits than NumPy's
SHIPPED = {"examples": "emulation/examples"}  # folder -> where a wheel has it
SHIPPED |= {f"tools/{name}": f"emulation/examples/{name}" for name in ("scapy", "wireshark")}
LIBRARY = FOLDER / "libswitchagg.so"
COMPILERS = ("cc", "gcc", "clang")
GET_COMPILER = "get one by `apt install gcc libc6-dev` or `pip install ziglang`, then build again"
WITHOUT = "until then the switch runs on Python, more slowly; host collectives and simulations by packets are refused"
BPF_OBJECTS = {  # name -> source, definitions; SA_ELEMENTS is the most elements per packet
    "xdp_mtu1500.bpf.o": ("xdp/xdp.bpf.c", ["-DSA_ELEMENTS=SA_XDP_ELEMENTS_MTU_1500"]),
    "xdp_jumbo.bpf.o": ("xdp/xdp.bpf.c", ["-DSA_ELEMENTS=SA_XDP_ELEMENTS_JUMBO"]),
    "loss.bpf.o": ("xdp/loss.bpf.c", []),
    "copies.bpf.o": ("xdp/copies.bpf.c", []),
    "mark.bpf.o": ("xdp/mark.bpf.c", []),
}


class BuildNative(build_ext):
    """Builds a plain shared library, and the XDP programs beside it."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def run(self) -> None:
        if os.environ.get("SWITCHAGG_BUILDS_CORE") == "later":  # by tools/setup, which says how it went
            return
        _find_compiler()
        usual = self.build_lib, self.build_temp
        with tempfile.TemporaryDirectory() as folder:  # of our own: two builds in one checkout don't meet
            self.build_temp = folder
            if self.inplace:
                self.build_lib = folder
            built = Path(self.build_lib) / LIBRARY
            built.unlink(missing_ok=True)  # what an earlier build left is of other sources
            super().run()
            if not built.exists():
                _say(f"{LIBRARY} was NOT built: no C compiler that works; {GET_COMPILER}; {WITHOUT}")
            elif self.inplace:
                _put(built, LIBRARY)
            else:
                _say(f"built {built}")
            self._build_bpf(Path(folder), FOLDER if self.inplace else Path(self.build_lib) / FOLDER)
        self.build_lib, self.build_temp = usual

    def copy_extensions_to_source(self) -> None:
        """Nothing: `run` does it, and in one step."""

    def _build_bpf(self, temporary: Path, folder: Path) -> None:
        clang = shutil.which("clang")
        for name, (source, definitions) in BPF_OBJECTS.items():
            if clang is None:
                _say(f"{name} was NOT built: no clang; the data plane xdp will say so")
                continue
            flags = [
                "-O2",
                "-g",
                "-Wall",
                "-mcpu=v3",
                "-target",
                "bpf",
                *definitions,
                "-I.",
                f"-I{_multiarch_headers()}",
            ]
            done = subprocess.run(
                [clang, *flags, "-c", str(FOLDER / source), "-o", str(temporary / name)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            words = [line for line in done.stdout.splitlines() if "error" in line] or done.stdout.splitlines()
            if done.returncode:
                _say(f"{name} was NOT built: {words[0] if words else clang}; the data plane xdp will say so")
            else:
                _put(temporary / name, folder / name)


class BuildWithExamples(build_py):
    """Copies what is shipped beside the code into the packages; in place it is found where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for folder, place in SHIPPED.items():
                for source in _files(Path(folder)):
                    target = Path(self.build_lib) / place / source.relative_to(folder)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self.copy_file(str(source), str(target))


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and every Python 3: the library is one's own, not an extension of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


def _files(folder: Path) -> list[Path]:
    """All of a folder, but what was made of them, results of runs there, and what is hidden."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(
        path
        for path in found
        if not any(part.startswith((".", "__pycache__")) or part == "results" for part in path.parts)
    )


def _write_header() -> None:
    """Writes the terms of a job for the C core; a header that is right already keeps its time."""
    sys.path.insert(0, str(Path(__file__).parent))
    from switchagg.native import packet_terms

    header, text = FOLDER / packet_terms.HEADER, packet_terms.header()
    if not header.exists() or header.read_text(encoding="utf-8") != text:
        header.write_text(text, encoding="utf-8")


def _find_compiler() -> None:
    """Takes another compiler where the one that Python was built with isn't installed; PyPI's ziglang is the last."""
    usual = (sysconfig.get_config_var("CC") or "").split() or [""]
    if "CC" not in os.environ and shutil.which(usual[0]) is None:
        zig = f"{sys.executable} -m ziglang cc" if find_spec("ziglang") else usual[0]
        os.environ["CC"] = next(filter(shutil.which, COMPILERS), zig)


def _put(made: Path, place: Path) -> None:
    """Moves a finished file to its place, where anybody sees all of it or none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.copyfile(made, partial)
    partial.replace(place)
    _say(f"built {place}")


def _say(line: str) -> None:
    print(f"setup.py: {line}", flush=True)


def _multiarch_headers() -> str:
    """Where Debian keeps asm/types.h, which clang's BPF target doesn't look for by itself."""
    return next((str(path.parent.parent) for path in sorted(Path("/usr/include").glob("*-linux-gnu/asm/types.h"))), ".")


def _sources(suffix: str) -> list[str]:
    """The library's C, of all its rooms."""
    from switchagg.native import headers

    return [str(path.relative_to(headers.ROOT)) for path in headers.sources(suffix)]


_write_header()  # before anything lists what goes into the package
setup(
    ext_modules=[
        Extension(
            "switchagg.native.libswitchagg",
            _sources(".c"),
            depends=_sources(".h"),
            include_dirs=["."],
            extra_compile_args=FLAGS,
            extra_link_args=["-lm"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildNative, "build_py": BuildWithExamples, "bdist_wheel": PlatformWheel},
)
