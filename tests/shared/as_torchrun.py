"""As `torchrun` with one worker on this host: its own parser and its variables, without its second process, which would
load PyTorch for another two seconds."""

import os
import runpy
import sys

from torch.distributed.run import get_args_parser

if __name__ == "__main__":
    given = get_args_parser().parse_args()
    assert given.nproc_per_node == "1"
    address, port = given.master_addr, str(given.master_port)
    os.environ |= {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "WORLD_SIZE": given.nnodes,
        "RANK": str(given.node_rank),
    }
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    sys.argv = [given.training_script, *given.training_script_args]
    runpy.run_path(given.training_script, run_name="__main__")
