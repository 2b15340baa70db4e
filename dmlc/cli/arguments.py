"""Argument parsing that returns errors instead of leaving the process, with did-you-mean for options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from dmlc.ir.suggest import did_you_mean


class Usage(Exception):
    """Wrong usage (code 2), or a request for help (code 0, the text goes to standard output)."""

    def __init__(self, text: str, code: int = 2):
        super().__init__(text)
        self.text, self.code = text, code


class Parser(argparse.ArgumentParser):
    """`parse(argv)` gives the namespace or raises `Usage`."""

    def __init__(self, **kwargs: Any):
        super().__init__(add_help=False, allow_abbrev=False, **kwargs)
        self.add_argument("-h", "--help", action="store_true", help="show this text")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        if "-h" in argv or "--help" in argv:
            raise Usage(self.format_help(), 0)
        namespace, unknown = self.parse_known_args(argv)
        if unknown:
            word = unknown[0].split("=")[0]
            known = [o for action in self._actions for o in action.option_strings]
            self.error(f"unknown argument '{word}'{did_you_mean(word, known)}")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise Usage(f"{self.prog}: {message}\n{self.format_usage()}")
