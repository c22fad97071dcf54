"""The base of what is opened and closed: networks, sites, groups of processes."""

from abc import ABC, abstractmethod
from typing import Self


class Resource(ABC):
    """A context manager that closes all that it has opened, also where opening it fails halfway."""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:  # noqa: B027  # some are open once they are made
        """Opens it."""

    @abstractmethod
    def close(self) -> None:
        """Ends all that was opened. Idempotent."""
