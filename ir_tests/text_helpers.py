"""Helpers shared by tests of the text form."""

from __future__ import annotations


def xdsl_accepts(text: str) -> None:
    """Raises when xDSL, which knows nothing of dmlc, does not parse and verify the text."""
    from xdsl.context import Context
    from xdsl.dialects.builtin import Builtin
    from xdsl.dialects.func import Func
    from xdsl.parser import Parser

    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    context.load_dialect(Func)
    Parser(context, text).parse_module().verify()
