"""The prompt of `p4vm cli`: a line edited with readline, completed by the switch that runs."""

import signal
from typing import Any

import typer

from p4vm.commands.line import error_line
from p4vm.source import P4Error

PROMPT = "RuntimeCmd: "


def converse(client: Any) -> bool:
    """Until Ctrl-D, exit or quit; whether a command failed. Ctrl-C ends a line, not the prompt."""
    _complete_with(client)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = False
    typer.echo("Commands for the switch; help lists them, Tab completes, Ctrl-D ends")
    while True:
        try:
            line = input(PROMPT).strip()
        except EOFError:
            typer.echo()
            return failed
        except KeyboardInterrupt:
            typer.echo()
            continue
        if line in ("exit", "quit", "EOF"):
            return failed
        failed |= bool(line) and not say(client, line)


def _complete_with(client: Any) -> None:
    """Where Python has no readline, lines are read without editing."""
    try:
        import readline
    except ImportError:
        return
    words: list[str] = []

    def completer(text: str, state: int) -> str | None:
        nonlocal words
        if state == 0:
            try:
                words = client.complete(readline.get_line_buffer()[: readline.get_endidx()])
            except P4Error:
                words = []
        return f"{words[state]} " if state < len(words) else None

    readline.set_completer_delims(" \t")
    readline.set_completer(completer)
    readline.parse_and_bind("tab: complete")


def say(client: Any, line: str) -> bool:
    """Carry out one line and print what it says; whether it could be done."""
    try:
        text = client.command(line)
    except P4Error as error:
        typer.echo(error_line(error))
        return False
    if text:
        typer.echo(text)
    return True
