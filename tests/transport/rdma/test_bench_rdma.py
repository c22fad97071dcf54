"""The benchmark of RDMA writes: a short run of it, and nothing left behind."""

import pytest

from emulation.scenario.errors import RunFailed
from switchagg.native import library
from tools.bench import rdma


@pytest.mark.system
@pytest.mark.parametrize("kind", ["RC", "UC"])
def test_a_short_run(kind: str, requires_root_namespaces: None) -> None:
    if reason := library.missing():
        pytest.skip(f"needs the compiled core: {reason}")
    found = rdma.rdma_write_throughput(kind, 1024, cell_s=0.1, rounds=1)
    assert (found["kind"], found["mtu"], found["message_bytes"]) == (kind, 1024, 1_000_000)
    for way in ("rdma", "udp"):
        for name in (f"{way}_gbps", f"{way}_core_gbps"):
            assert 0 < found[name]["low"] <= found[name]["median"] <= found[name]["high"]
    assert found["share"] == found["rdma_gbps"]["median"] / found["udp_gbps"]["median"]


def test_without_root_the_benchmark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma.netns, "is_privileged", lambda: False)
    monkeypatch.setattr(library, "missing", lambda: "")
    with pytest.raises(RunFailed, match="needs root"):
        rdma.rdma_write_throughput()
