"""A Future whose value is a list of tensors to C++ as well, for PyTorch's built-in communication hooks.

A value that Python sets on a Future is a Python object to C++. DDP's reducer unpacks such a value, the hook
FP16_COMPRESS does not. TorchScript makes a Future of the right type; an error raised in it is one in C++ terms.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, List  # noqa: UP035  # TorchScript knows no other list

import torch

TEXT_BYTES = 1000


def typed(done: torch.futures.Future[Any], text: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Any:
    """A Future of the tensors after `done`. text: then all zero, or the bytes of an error; `TEXT_BYTES` uint8."""
    return _start()(done, text, list(tensors))


def _after(
    done: torch.jit.Future[torch.Tensor],
    text: torch.Tensor,
    tensors: List[torch.Tensor],  # noqa: UP006
) -> List[torch.Tensor]:  # noqa: UP006
    torch.jit.wait(done)
    words = ""
    if int(text[0]) != 0:
        for code in text:
            words += chr(int(code))
        raise RuntimeError(words)
    return tensors


def _fork(
    done: torch.jit.Future[torch.Tensor],
    text: torch.Tensor,
    tensors: List[torch.Tensor],  # noqa: UP006
) -> torch.jit.Future[List[torch.Tensor]]:  # noqa: UP006
    return torch.jit.fork(_after, done, text, tensors)  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _start() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates TorchScript
        return torch.jit.script(_fork)
