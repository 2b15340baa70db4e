"""`dmlc COMMAND …`: finds the command's file and turns errors into messages and exit codes.

Exit codes: 0 done, 1 the user's input cannot be compiled, 2 wrong usage, 130 interrupted.
A command is a module `dmlc.cli.<name>` whose `main(argv) -> int` does the work; its docstring's first line is its help.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

from dmlc.cli.arguments import Usage
from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean

NOT_COMMANDS = ("main", "arguments")


def commands() -> list[str]:
    import dmlc.cli

    return sorted(m.name for m in pkgutil.iter_modules(dmlc.cli.__path__) if m.name not in NOT_COMMANDS and not m.name.startswith("_"))


def help_text() -> str:
    lines = ["usage: dmlc COMMAND …", "", "commands (dmlc COMMAND --help tells more):"]
    for name in commands():
        summary = (importlib.import_module(f"dmlc.cli.{name}").__doc__ or "").strip().splitlines()[0]
        lines.append(f"  {name:10} {summary}")
    return "\n".join(lines) + "\n"


def run_command(name: str, argv: Sequence[str]) -> int:
    if name not in commands():
        raise Usage(f"dmlc: there is no command '{name}'{did_you_mean(name, commands())}\n{help_text()}")
    return importlib.import_module(f"dmlc.cli.{name}").main(list(argv))


def guarded(argv: Sequence[str]) -> int:
    """Run a command; every error of the user's becomes one message on standard error."""
    from dmlc import __version__

    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            raise Usage(help_text(), 0 if argv else 2)
        if argv[0] == "--version":
            raise Usage(f"dmlc {__version__}\n", 0)
        return run_command(argv[0], argv[1:])
    except Usage as e:
        (sys.stderr if e.code else sys.stdout).write(e.text)
        return e.code
    except DmlcError as e:
        print(e, file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader has gone, as `| head` does
        sys.stderr.close()
        return 0
    except OSError as e:  # a file that cannot be read, a full disk
        print(f"{e.filename or 'dmlc'}: error: {e.strerror or e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dmlc: interrupted", file=sys.stderr)
        return 130


def main() -> None:
    """The console script."""
    sys.exit(guarded(sys.argv[1:]))


if __name__ == "__main__":
    main()
