"""What a shell completes (`switchagg --install-completion`): names, each read from where it is defined."""

from __future__ import annotations


def scenario_names(incomplete: str) -> list[str]:
    """Shipped scenarios; where none fits, the shell goes on with files."""
    from emulation.scenario.scenario import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def reference_names(incomplete: str) -> list[str]:
    """What `switchagg scenarios` shows: shipped scenarios, tables, and keys once a table is there."""
    from emulation.scenario.key_reference import names

    dotted = "." in incomplete
    return scenario_names(incomplete) + [
        name for name in names() if name.startswith(incomplete) and ("." in name) == dotted
    ]


def method_names(incomplete: str) -> list[str]:
    """Of the last of several methods with commas between them: its name, after `~` its codec."""
    from switchagg.codecs import ARRAY_CODECS, names
    from transport.group.method_name import METHODS

    before, comma, last = incomplete.rpartition(",")
    method, tilde, _ = last.partition("~")
    options = [f"{method}~{codec}" for codec in (*names(), *ARRAY_CODECS)] if tilde else list(METHODS)
    return [f"{before}{comma}{option}" for option in options if option.startswith(last)]
