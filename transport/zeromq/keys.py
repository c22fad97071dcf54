"""CURVE keys: who may connect over ZeroMQ, and to whom; everything between them is encrypted.

A folder of keys holds:

    server.key_secret        the listening side's pair; hosts that only connect don't need it
    server.key               its public half: with it a client makes sure that it reaches the holder of the secret
    NAME.key_secret          a connecting side's pair, `client` by default
    clients/NAME.key         the public halves of those that the listening side lets in

In a mesh every member listens and connects, so each host gets the whole folder. For a switch or a parameter server, its
host gets the whole folder without NAME.key_secret, workers get server.key and NAME.key_secret. Deleting
clients/NAME.key shuts that client out from the next start on. Files have the form that pyzmq's certificates have.
"""

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.auth
from zmq.utils.z85 import Z85CHARS

from switchagg.errors import JobError

SERVER = "server"
CLIENT = "client"
_PUBLIC, _SECRET = ".key", ".key_secret"
_REMEDY = "`switchagg keys DIR` makes keys"


@dataclass(frozen=True)
class Keys:
    """The keys that one process needs, as 40 characters of Z85 each. server_secret: None where nothing listens.

    allowed: public key -> name of the clients that are let in. several: names of the clients whose secrets the folder
    has, where none of them is chosen.
    """

    folder: Path
    server_public: bytes
    client_public: bytes
    client_secret: bytes | None = field(repr=False)
    server_secret: bytes | None = field(repr=False)
    allowed: dict[bytes, str]
    several: tuple[str, ...] = ()

    def secure_server(self, listening: "zmq.Socket[bytes]") -> None:
        """Let in only holders of allowed keys; before the socket is bound. Raises JobError without a server's secret.

        The context needs an `Authenticator` (transport.zeromq.zmq_sockets), which checks clients' keys.
        """
        if self.server_secret is None:
            raise JobError(f"keys in {self.folder}: {SERVER}{_SECRET} is missing, which a listening side needs")
        listening.set(zmq.CURVE_SERVER, 1)
        listening.set(zmq.CURVE_PUBLICKEY, self.server_public)
        listening.set(zmq.CURVE_SECRETKEY, self.server_secret)
        listening.set(zmq.ZAP_DOMAIN, b"switchagg")

    def check_client(self) -> None:
        """Raise JobError unless there is the secret of one client, which a connecting side needs and no other."""
        if self.several:
            names = ", ".join(self.several)
            raise JobError(f"keys in {self.folder}: several clients ({names}); leave one NAME{_SECRET} there")
        if self.client_secret is None:
            raise JobError(
                f"keys in {self.folder}: no NAME{_SECRET} of a client, which a connecting side needs; copy one there"
            )

    def secure_client(self, connecting: "zmq.Socket[bytes]") -> None:
        """Encrypt to the holder of server.key alone; before the socket connects. JobError says if a secret is
        missing."""
        self.check_client()
        assert self.client_secret is not None
        connecting.set(zmq.CURVE_SERVERKEY, self.server_public)
        connecting.set(zmq.CURVE_PUBLICKEY, self.client_public)
        connecting.set(zmq.CURVE_SECRETKEY, self.client_secret)


def as_keys(source: Keys | Path | str | None) -> Keys | None:
    """The keys of a side that connects, themselves or in the folder that was given. Raises JobError."""
    keys = source if isinstance(source, Keys) else load_keys(source) if source else None
    if keys is not None:
        keys.check_client()
    return keys


def key_advice(keys: Keys | None) -> str:
    """Advice for a process that gets no answer, as far as keys are concerned."""
    if keys is None:
        return "give this side its keys, if it has any"
    return f"compare the keys in {keys.folder} with its own: it logs whom it refuses"


def make_keys(folder: Path, clients: Sequence[str] = (CLIENT,)) -> list[Path]:
    """Make a server's pair, unless there is one, and a pair for each client; returns the files written.

    Secrets can be read by their owner alone (0600). Raises JobError in one line: no CURVE in this libzmq, a client that
    is there already, a folder that can't be written.
    """
    if not zmq.has("curve"):
        raise JobError("this libzmq was built without CURVE; install pyzmq's own wheel: pip install --force pyzmq")
    for name in clients:
        if not name or name == SERVER or not name.replace("-", "").replace("_", "").isalnum():
            raise JobError(f"client '{name}': a name is letters, digits, - and _, and not '{SERVER}'")
        if any(path.exists() for path in (folder / f"{name}{_SECRET}", folder / "clients" / f"{name}{_PUBLIC}")):
            raise JobError(f"keys of client '{name}' are in {folder} already; delete them, or choose another name")
    files = []
    try:
        (folder / "clients").mkdir(parents=True, exist_ok=True)
        if not (folder / f"{SERVER}{_SECRET}").exists():
            files += _make_pair(folder / f"{SERVER}{_SECRET}", folder / f"{SERVER}{_PUBLIC}")
        for name in clients:
            files += _make_pair(folder / f"{name}{_SECRET}", folder / "clients" / f"{name}{_PUBLIC}")
    except OSError as error:
        raise JobError(f"keys can't be written to {folder}: {error.strerror}") from error
    return files


def load_keys(folder: Path | str, client: str | None = None) -> Keys:
    """The keys in a folder. client: whose secret to use when connecting; None: `client`'s, or the only one there is.

    Raises JobError in one line, with what to do: a file is missing, can't be read, is damaged, or others may read it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise JobError(f"no folder of keys at {folder}; {_REMEDY}")
    server_public, _ = _read(folder / f"{SERVER}{_PUBLIC}")
    server_secret = client_public = client_secret = None
    if (folder / f"{SERVER}{_SECRET}").exists():
        own_public, server_secret = _read(folder / f"{SERVER}{_SECRET}")
        if own_public != server_public:
            raise JobError(
                f"keys in {folder}: {SERVER}{_PUBLIC} and {SERVER}{_SECRET} don't belong together; {_REMEDY}"
            )
    names = _clients(folder) if client is None else [client]
    if len(names) == 1:
        client_public, client_secret = _read(folder / f"{names[0]}{_SECRET}")
    allowed = {_read(path)[0]: path.stem for path in sorted((folder / "clients").glob(f"*{_PUBLIC}"))}
    several = tuple(names) if len(names) > 1 else ()
    return Keys(folder, server_public, client_public or b"", client_secret, server_secret, allowed, several)


def _clients(folder: Path) -> list[str]:
    """The clients whose secrets may be used: the one named `client` if it is among them, else all."""
    names = [path.stem for path in sorted(folder.glob(f"*{_SECRET}")) if path.stem != SERVER]
    return [CLIENT] if CLIENT in names else names


def _make_pair(secret: Path, public: Path) -> list[Path]:
    public_key, secret_key = zmq.curve_keypair()
    banner = "#   ZeroMQ CURVE certificate, made by `switchagg keys`\n\nmetadata\ncurve\n"
    line = f'    public-key = "{public_key.decode()}"\n'
    _write(secret, f'{banner}{line}    secret-key = "{secret_key.decode()}"\n', 0o600)
    _write(public, banner + line, 0o644)
    return [secret, public]


def _write(path: Path, text: str, mode: int) -> None:
    """A new file that no other user could read at any moment, or none."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise


def _read(path: Path) -> tuple[bytes, bytes | None]:
    """Public and, from a secret's file, secret key. Raises JobError."""
    secret_wanted = path.suffix == _SECRET
    if not path.exists():
        raise JobError(f"key {path} is missing; {_REMEDY}")
    try:
        if secret_wanted and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise JobError(f"key {path}: others may read it; run `chmod 600 {path}`, or make new keys if it leaked")
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else "is damaged"
        raise JobError(f"key {path}: {what}; {_REMEDY}") from error
    if not _is_key(public) or (secret_wanted and not _is_key(secret or b"")):
        raise JobError(f"key {path} is damaged; {_REMEDY}")
    return public, secret


def _is_key(text: bytes) -> bool:
    return len(text) == 40 and set(text) <= set(Z85CHARS)
