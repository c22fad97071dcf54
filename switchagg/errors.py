"""The exceptions of switchagg; each means that another party is at fault.

`DecodeError`: the network (count it, drop the packet, continue). `JobError`: the control plane or the set-up (report it
to the user). `AggregationFailed`: a call was given up (the caller may fall back). Programming errors are assertions.
"""


class SwitchaggError(Exception):
    """Any error switchagg raises on purpose."""


def as_line(error: BaseException) -> str:
    """What went wrong, for people: its text where it was written for them, else with its kind."""
    has_text = isinstance(error, SwitchaggError | OSError) and str(error)
    return str(error) if has_text else f"{type(error).__name__}: {error}"


class DecodeError(SwitchaggError):
    """Bytes that are not a valid packet. `reason` is one of `wire.REASONS` and names the counter (rule P6)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class JobError(SwitchaggError):
    """The control plane refused a job, or a job can't be set up as asked.

    `lacks_room`: the request is sound, but the switch's slots are in use or too few for it.
    """

    def __init__(self, detail: str, *, lacks_room: bool = False) -> None:
        super().__init__(detail)
        self.lacks_room = lacks_room


class AggregationFailed(SwitchaggError):
    """A call was given up; what is known of the place and of the ranks that are missing (rule W9).

    `job` is the name (or id) of the job; `stream`, `slot` and `chunk` are None when the failure isn't one chunk's;
    `missing` holds the ranks whose contribution the switch has not seen, as far as that is known.
    """

    def __init__(
        self,
        detail: str,
        *,
        job: str | int,
        generation: int | None = None,
        stream: int | None = None,
        slot: int | None = None,
        chunk: int | None = None,
        missing: tuple[int, ...] = (),
    ) -> None:
        self.detail = detail
        self.job = job
        self.generation = generation
        self.stream = stream
        self.slot = slot
        self.chunk = chunk
        self.missing = missing
        place = ", ".join(
            f"{name} {value}"
            for name, value in (("generation", generation), ("stream", stream), ("slot", slot), ("chunk", chunk))
            if value is not None
        )
        ranks = f"; missing ranks: {', '.join(map(str, missing))}" if missing else ""
        super().__init__(f"job {job}{f' ({place})' if place else ''}: {detail}{ranks}")
