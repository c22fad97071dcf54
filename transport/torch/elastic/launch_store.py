"""The store of an elastic job in its launcher: it outlives every rank."""

from typing import Any

import torch.distributed as dist


def host_store(address: str = "127.0.0.1", port: int = 0) -> tuple[Any, dict[str, str]]:
    """A TCPStore in this process, and the variables with which ranks find it by `init_process_group("switchagg")`.

    port: 0 for any free one. The ranks need RANK and WORLD_SIZE besides; the store lives as long as what is returned.
    """
    c10d: Any = dist  # its stub doesn't list TCPStore
    store = c10d.TCPStore(address, port, is_master=True, wait_for_workers=False)
    variables = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port)}
    return store, variables | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
