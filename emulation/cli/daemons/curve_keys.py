"""`switchagg keys`: makes the CURVE keys that `--keys` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emulation.cli.outcomes import outcomes


def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the keys; it is made if it isn't there")],
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client's key; may be repeated  [default: client]")
    ] = None,
) -> None:
    """Make keys for ZeroMQ: only their holders connect, encrypted.

    They are CURVE keys. `switchagg switch`, `switchagg server` and their workers take the folder.

    **Examples**

    `switchagg keys keys` : one pair for the side that listens (server), one for those that connect (client)

    `switchagg keys keys --client alice --client bob` : a pair each; delete keys/clients/bob.key to refuse bob

    `switchagg switch --keys keys --link zeromq`, and on the workers `SWITCHAGG_KEYS=keys`

    Workers of a switch need server.key and NAME.key_secret alone; members of a ring or another host method, which all
    listen, the whole folder. Secrets are made for their owner alone (mode 0600); copy them so (`scp -p`).
    """
    with outcomes():
        from transport.zeromq.keys import make_keys

        for path in make_keys(folder, client or ["client"]):
            typer.echo(str(path))
