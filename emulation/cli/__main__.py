"""Entry point of the console script: Ctrl-C is one line even while Python still loads the commands."""

import sys


def main() -> None:
    """The command `switchagg`."""
    try:
        from emulation.cli.main import main as run
    except KeyboardInterrupt:  # nothing has been started yet
        sys.stderr.write("switchagg: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
