"""Refusals of a client's requests: a canonical code and one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from google.rpc import code_pb2

from p4vm.source import P4Error

INVALID, MISSING = code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND

_CODES = {
    "DUPLICATE_ENTRY": code_pb2.ALREADY_EXISTS,
    "TABLE_FULL": code_pb2.RESOURCE_EXHAUSTED,
    "BAD_MATCH_KEY": MISSING,
    "SESSION_NOT_FOUND": MISSING,
    "INVALID_INDEX": code_pb2.OUT_OF_RANGE,
    "IMMUTABLE_TABLE_ENTRIES": code_pb2.PERMISSION_DENIED,
    "DEFAULT_ENTRY_IS_CONST": code_pb2.PERMISSION_DENIED,
    "MBR_STILL_USED": code_pb2.FAILED_PRECONDITION,
    "GRP_STILL_USED": code_pb2.FAILED_PRECONDITION,
    "EMPTY_GRP": code_pb2.FAILED_PRECONDITION,
}
"""The control plane's words for what is wrong -> the canonical code of P4Runtime's specification."""
_WORD = re.compile(r"Invalid [a-zA-Z ]+ operation \((\w+)\): ")


class RuntimeRefusal(Exception):
    """code: google.rpc.Code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unimplemented(what: str) -> RuntimeRefusal:
    return RuntimeRefusal(code_pb2.UNIMPLEMENTED, f"{what}: this switch doesn't have it")


@contextmanager
def refusing() -> Iterator[None]:
    """Gives the control plane's errors their code."""
    try:
        yield
    except P4Error as error:
        word = _WORD.match(error.message)
        code = _CODES.get(word.group(1), INVALID) if word else INVALID
        raise RuntimeRefusal(code, _WORD.sub("", error.message)) from None
