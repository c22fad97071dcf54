"""The thread in which a group's codec runs its steps: neither the caller's nor the network's waits for them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from switchagg.calls.round_calls import Ended, Step
from switchagg.codecs.float_environment import use_ieee_arithmetic


class CodecThread:
    """Runs steps in the order in which they come."""

    def __init__(self, codec: str) -> None:
        self._thread = ThreadPoolExecutor(1, f"codec {codec}", use_ieee_arithmetic)

    def later(self, step: Step) -> None:
        """Run a step soon; after `close` at once: the group refuses its round then, and the call ends."""
        try:
            self._thread.submit(step)
        except RuntimeError:
            step()

    def close(self) -> None:
        """Take no more steps."""
        self._thread.shutdown(wait=False)


def ended_future(result: object, finish: Callable[[], None] | None = None) -> "tuple[Future[Any], Ended]":
    """A future that can't be cancelled, and what ends it: with the result, after `finish`, or with a failure."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def ended(failure: BaseException | None) -> None:
        try:
            if failure is None and finish is not None:
                finish()
        except BaseException as error:
            failure = error
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    return future, ended


def pass_on(ended: Ended, part: "Future[Any]") -> None:
    """Tell the end of a round; a callback of its future."""
    ended(part.exception())
