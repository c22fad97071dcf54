"""The commands of one level, and what a wrong name may have meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperGroup

from switchagg.option_syntax import choices, close_match

PANELS = {
    "Start": ("doctor", "init", "examples"),
    "Emulate": ("compare", "sweep", "scenarios"),
    "Train": ("try", "switch", "server", "status", "top", "keys", "profile", "whatif"),
    "Measure": ("bench", "reproduce", "study", "calibrate", "chaos"),
    "P4": ("p4",),
}
"""The groups that `switchagg --help` shows, in its order."""

SHORTER: dict[str, dict[str, Any]] = {
    "install_completion": {"help": "Let your shell complete names."},
    "show_completion": {"hidden": True},
}
"""What `switchagg --help` has in place of typer's words about its own options."""


class CommandGroup(TyperGroup):
    """Commands of which a name that isn't there gets one line, with the one that is most like it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{name[:60]}'{choices(name, self.commands)}")
        return super().resolve_command(ctx, args)


class PanelGroup(CommandGroup):
    """Those of `switchagg` itself, in PANELS."""

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        ordered = [name for names in PANELS.values() for name in names if name in commands]
        super().__init__(commands={name: commands[name] for name in [*ordered, *commands]}, **settings)
        for panel, names in PANELS.items():
            for name in set(names).intersection(commands):
                vars(commands[name])["rich_help_panel"] = panel

    def get_params(self, ctx: Any) -> Any:
        """The options, in lines short enough for a screen of 80 columns."""
        for parameter in (parameters := super().get_params(ctx)):
            vars(parameter).update(SHORTER.get(parameter.name or "", {}))
        return parameters


def usage_text(error: Any) -> str:
    """A usage error in one line, with the option that an unknown one is most like."""
    words = " ".join(error.format_message().split()).rstrip(".")
    context: Any = getattr(error, "ctx", None)
    option = getattr(error, "option_name", "")
    if context and option and type(error).__name__ == "NoSuchOption":
        known = [word for parameter in context.command.params for word in parameter.opts]
        words = f"No such option: {option[:60]}{close_match(option, known)}"
    return f"{words} (see {context.command_path if context else 'switchagg'} --help)"
