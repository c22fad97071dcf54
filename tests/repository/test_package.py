"""The package as a whole: what it promises in its docstring."""

import subprocess
import sys

import numpy as np
import pytest

import switchagg
from switchagg import DATAPLANES, Endpoint, JobConfig, StreamConfig, array_call


def test_the_docstring_s_example_sums() -> None:
    array, now_ns = np.arange(1000, dtype=np.float32), 0
    code = [line[4:] for line in (switchagg.__doc__ or "").splitlines() if line.startswith("    ")]
    names = {
        "array": array,
        "now_ns": now_ns,
        "DATAPLANES": DATAPLANES,
        "Endpoint": Endpoint,
        "JobConfig": JobConfig,
        "StreamConfig": StreamConfig,
        "array_call": array_call,
    }
    exec("\n".join(code), names)
    assert array.tolist() == list(range(1000))


def test_importing_needs_numpy_only() -> None:
    """Every other package is out of reach; the core still imports."""
    code = (
        "import sys\n"
        "class Deny:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top in {'torch', 'zmq', 'msgspec', 'typer', 'rich', 'matplotlib', 'jinja2', 'mininet', 'sklearn',\n"
        "                   'transport', 'emulation'}:\n"
        "            raise ImportError(f'{name} must not be needed')\n"
        "sys.meta_path.insert(0, Deny())\n"
        "import switchagg, switchagg.controller.admission, switchagg.dataplane.reference\n"
        "assert all(hasattr(switchagg, name) for name in switchagg.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_errors_need_no_numpy() -> None:
    """`mn` runs our topology on the system's Python, which may have no NumPy."""
    code = "import sys; sys.modules['numpy'] = None; import switchagg.errors"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_names_come_from_where_they_are_defined() -> None:
    from switchagg.wire import Packet

    assert switchagg.Packet is Packet
    with pytest.raises(AttributeError, match="no attribute 'payload'"):
        switchagg.payload  # noqa: B018
