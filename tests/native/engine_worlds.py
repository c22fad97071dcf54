"""What the packet engine in C does in small random worlds, a line for each, to compare builds of it.

`python tests/native/engine_worlds.py 0 40`: seeds 0 to 39, of the switch, host methods and parameter servers, with
values and without, hosts and programs in Python among them. The last line counts what links did to frames in all of
them. The oracle is not asked.
"""

import hashlib
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from emulation.sim.size_only import SizeOnlyArray
from tests.emulation.sim import test_compiled_engine as switches
from tests.emulation.sim import test_compiled_members as hosts


def calls_of(seed: int) -> tuple[str, dict[str, Any]]:
    """All there is to see of one world, and its name."""
    source = random.Random(seed)
    if seed % 2:
        config, method = hosts.world(source)
        if seed % 8 == 5:
            config, method = hosts.served(source, ("bsp", "backup")), "ps"
        if seed % 8 == 3:  # hosts in Python: their bytes, their objects, what has left a link that can be paused
            config, method = hosts.upon_python(source, config, ("ring", "mlt")[seed // 8 % 2])
        return method, hosts.told(config, method, seed, size_only=seed % 8 == 7)
    if seed % 8 == 4:
        changed = replace(switches.world(source), dataplane="reference")
        return "switch", switches.told(changed, seed)
    return "switch", switches.told(switches.world(source), seed, SizeOnlyArray if seed % 8 == 6 else None)


def main(first: int, end: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(first, end):
        name, found = calls_of(seed)
        print(seed, name, found["events"], hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest())
        done.update({"failed": bool(found["failed"]), "again": found["again"]})
        for link in found["links"]:
            done.update(link[-1])
            done["marked"] += link[4] if name == "switch" else 0
    print(*(f"{what}={count}" for what, count in sorted(done.items())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
