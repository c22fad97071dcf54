"""Help that names links: the names come from the table, which is loaded when help is shown and not before."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class LinkCommand(TyperCommand):
    """A command whose options' help has `{switch}`, `{mesh}` and the like in place of names of links."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.name_links()
        super().format_help(ctx, formatter)

    def name_links(self) -> None:
        """Puts the names in."""
        words = _words()
        for parameter in self.params:
            if text := getattr(parameter, "help", None):
                setattr(parameter, "help", text.format(**words))  # noqa: B010


def _words() -> dict[str, str]:
    from switchagg.job import ELEMENTS_MTU_1500 as usual
    from transport.links.link_kinds import LINKS, links_with

    of_switch = [LINKS[name] for name in links_with("switch")]
    exceptions = "".join(f", over {kind.name} {kind.elements}" for kind in of_switch if kind.elements != usual)
    return {
        "switch": ", ".join(
            kind.name + (f" (at --data HOST:{kind.port})" if kind.port is not None else "") for kind in of_switch
        ),
        "mesh": ", ".join(links_with("mesh")),
        "keys": ", ".join(links_with("keys")),
        "without_keys": ", ".join(kind.name for kind in of_switch if not kind.keys),
        "messages": ", ".join(links_with("messages")),
        "elements": f"{usual}{exceptions}",
    }
