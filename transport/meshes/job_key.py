"""The secret of a job, its *token*, and the keys that follow from it (M1, C26); no message has the token itself."""

import hashlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from switchagg.calls.mask import MASK_KEY_BYTES
from switchagg.errors import JobError

TOKEN_VARIABLE = "SWITCHAGG_TOKEN"
"""The secret of a job, the same for all its members; in the environment, as other users can read command lines."""

TOKEN_FILE_VARIABLE = "SWITCHAGG_TOKEN_FILE"
"""A file that holds the secret instead, so that neither the environment nor a scheduler's log does."""

TOKEN_CHARACTERS_MIN = 16
MAKE_ONE = "openssl rand -hex 32"
SET_ONE = f"set {TOKEN_VARIABLE} to the same secret on all ranks (`{MAKE_ONE}`)"
SUM_KEY_BYTES = 16


def new_token() -> str:
    """A secret for one job."""
    return secrets.token_hex(32)


def job_token(token: str = "", file: str | Path = "") -> str:
    """A job's secret: the given one, that of the given file, or else the environment's; "" without one.

    Raises JobError, which names the source, for a token that is too short, for two sources, and for a file that can't
    be read, is empty, or that others than its owner can read.
    """
    source = "option token"
    if token and file:
        raise JobError(f"option token and token file {file}: a job has one token; leave one of them out")
    if not token and not file:
        token, file = os.environ.get(TOKEN_VARIABLE, ""), os.environ.get(TOKEN_FILE_VARIABLE, "").strip()
        source = TOKEN_VARIABLE
        if token.strip() and file:
            raise JobError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one of them")
    if file:
        token, source = _read(Path(file)), f"token file {file}"
    token = token.strip()
    if 0 < len(token) < TOKEN_CHARACTERS_MIN:
        raise JobError(f"{source}: a token of {len(token)} characters can be guessed; make one with `{MAKE_ONE}`")
    return token


def _read(path: Path) -> str:
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"token file {path}: can't be read: {error}") from error
    if mode & 0o077:
        raise JobError(f"token file {path}: others may read it; run `chmod 600 {path}`")
    if not text.strip():
        raise JobError(f"token file {path}: empty; make one with `{MAKE_ONE} > {path}`")
    return text


def job_key(token: str, job: str) -> bytes:
    """The key of all members: it follows from the token; without a token from the job's name, which is no secret."""
    return hashlib.blake2b((token or job).encode(), digest_size=32, person=b"sa token" if token else b"sa job").digest()


def key_check(token: str, job: str) -> int:
    """What ranks compare of their tokens, 1 to 2**32 - 1: a digest that doesn't tell the token; 0 without one (C26)."""
    if not token:
        return 0
    digest = hashlib.blake2b(job.encode(), digest_size=4, key=job_key(token, job), person=b"sa check").digest()
    return max(1, int.from_bytes(digest, "big"))


def sum_key(token: str, job: str, generation: int, nonces: Sequence[int]) -> bytes:
    """The key of a generation's verified sums (C26). nonces: below 2**64, each rank's, in order of rank."""
    return _fresh_key(SUM_KEY_BYTES, b"sa sums", token, job, generation, nonces)


def mask_key(token: str, job: str, generation: int, nonces: Sequence[int]) -> bytes:
    """The key of a generation's masks (X1), of the same facts."""
    return _fresh_key(MASK_KEY_BYTES, b"sa masks", token, job, generation, nonces)


def _fresh_key(size: int, purpose: bytes, token: str, job: str, generation: int, nonces: Sequence[int]) -> bytes:
    fresh = generation.to_bytes(4, "big") + b"".join(nonce.to_bytes(8, "big") for nonce in nonces)
    return hashlib.blake2b(fresh, digest_size=size, key=job_key(token, job), person=purpose).digest()
