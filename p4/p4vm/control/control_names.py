"""Names of a program's parts as a user may write them: in full, or any suffix after a dot that means one thing only."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from p4vm.source import P4Error

Part = TypeVar("Part")
SHOWN_MAX = 12
"""Names that an error lists."""


class ControlNames(Generic[Part]):
    """Parts of one kind (table, register, …) by their full names."""

    def __init__(self, kind: str, parts: Mapping[str, Part]) -> None:
        self.kind = kind
        self.parts = dict(parts)
        self._suffixes: dict[str, list[str]] = {}
        for name in self.parts:
            words = name.split(".")
            for start in range(len(words)):
                self._suffixes.setdefault(".".join(words[start:]), []).append(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def matches(self, name: str) -> list[str]:
        """The full names that it may mean."""
        return [name] if name in self.parts else self._suffixes.get(name, [])

    def full(self, name: str) -> str:
        """The full name that is meant. Raises P4Error: unknown, or several are meant."""
        matches = self.matches(name)
        if len(matches) == 1:
            return matches[0]
        fault = f"Invalid {self.kind} name ({name[:80]})"
        if matches:
            raise P4Error(f"{fault}: it may mean {' or '.join(sorted(matches))}; write more of it")
        raise P4Error(f"{fault}; {self.known(name)}")

    def __getitem__(self, name: str) -> Part:
        return self.parts[self.full(name)]

    def known(self, name: str = "") -> str:
        """The name most like `name`, or all names there are."""
        if not self.parts:
            return f"the program has no {self.kind}"
        near = difflib.get_close_matches(name, list(self._suffixes), 1)
        if near:
            return f"did you mean {self._suffixes[near[0]][0]}?"
        listed = sorted(self.parts)
        more = f", … ({len(listed)} in all)" if len(listed) > SHOWN_MAX else ""
        return f"the program has: {', '.join(listed[:SHOWN_MAX])}{more}"
