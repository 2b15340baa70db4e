"""Pipelines as text: `canonicalize,fuse{max-ops=32, eager},schedule`.

A pass is found by its file: `tensor-fusion` is the class with that name in `dmlc/passes/tensor_fusion.py`. There is no list to keep.
Option values: `true false none`, numbers, words, "quoted text", and lists `[a, 2]`; a bare option means `true`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from dmlc.ir.location import DmlcError
from dmlc.ir.suggest import did_you_mean
from dmlc.passmanager.base import Pass

_TOKEN = re.compile(r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[^\s,{}\[\]="]+)|(?P<mark>[,{}\[\]=]))')


# ---------------------------------------------------------------- finding passes


def pass_names() -> list[str]:
    """All pass names, sorted: every module of `dmlc.passes` that defines a pass."""
    import dmlc.passes

    found = [m.name.replace("_", "-") for m in pkgutil.iter_modules(dmlc.passes.__path__) if not m.name.startswith("_")]
    return sorted(name for name in found if _class_in_module(name) is not None)


def find_pass(name: str) -> type[Pass]:
    """The class of pass `name`. Raises `DmlcError` with the nearest known name."""
    file = name.replace("-", "_")
    there = f"dmlc.passes.{file}" in sys.modules or _is_file(file)
    found = _class_in_module(name) if there else None
    if found is None and there and not file.startswith("_"):
        raise DmlcError(f"passes/{file}.py defines no pass with name = \"{name}\"; a pass is called as its file, with - for _")
    if found is None:
        raise DmlcError(f"there is no pass '{name}'{did_you_mean(name, pass_names())}")
    return found


def _is_file(file: str) -> bool:
    import dmlc.passes

    return any(m.name == file for m in pkgutil.iter_modules(dmlc.passes.__path__))


def _class_in_module(name: str) -> type[Pass] | None:
    module = importlib.import_module(f"dmlc.passes.{name.replace('-', '_')}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Pass) and value.name == name and value.__module__ == module.__name__:
            return value
    return None


# ---------------------------------------------------------------- reading


class _Reader:
    """A cursor over the tokens of a pipeline's text."""

    def __init__(self, text: str):
        self.text, self.at, self.token, self.start = text, 0, "", 0
        self.advance()

    def advance(self) -> str:
        old = self.token
        rest = self.text[self.at :]
        match = _TOKEN.match(rest)
        if match is None:
            if rest.strip():
                self.fail(f"unexpected '{rest.strip()[0]}'", self.at)
            self.token, self.start = "", len(self.text)
            return old
        self.start = self.at + match.start(match.lastgroup or 0)
        self.token, self.at = match[match.lastgroup or 0], self.at + match.end()
        return old

    def take(self, mark: str) -> bool:
        if self.token != mark:
            return False
        self.advance()
        return True

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            self.fail(f"expected '{mark}'" + (f" before '{self.token}'" if self.token else ""))

    def word(self, what: str) -> str:
        if not self.token or self.token in ",{}[]=":
            self.fail(f"expected {what}" + (f" before '{self.token}'" if self.token else ""))
        return self.advance()

    def fail(self, message: str, at: int | None = None, note: str = "") -> typing.NoReturn:
        at = self.start if at is None else at
        raise DmlcError(f"in the pipeline text: {message}", notes=(note,) if note else (), source_line=self.text, span=(at + 1, at + 2))


def parse_pipeline(text: str, named: Mapping[str, str] | None = None) -> tuple[Pass, ...]:
    """The passes that `text` asks for. A name in `named` stands for the pipeline text given there. Raises `DmlcError` with carets."""
    named = named or {}
    reader, passes = _Reader(text), []
    while reader.token:
        start, name = reader.start, reader.word("a pass name")
        if name in named:
            passes += parse_pipeline(named[name], {k: v for k, v in named.items() if k != name})
        else:
            passes.append(_read_pass(reader, name, start))
        if reader.token:
            reader.expect(",")
    return tuple(passes)


def _read_pass(reader: _Reader, name: str, start: int) -> Pass:
    try:
        cls = find_pass(name)
    except DmlcError as e:
        raise DmlcError(e.message, source_line=reader.text, span=(start + 1, start + 1 + len(name))) from None
    return cls(**_read_options(reader, cls)) if reader.take("{") else cls()


def _read_options(reader: _Reader, cls: type[Pass]) -> dict[str, Any]:
    hints = option_types(cls)
    options: dict[str, Any] = {}
    while not reader.take("}"):
        at, key = reader.start, reader.word("an option")
        field = key.replace("-", "_")
        if field not in hints:
            known = [k.replace("_", "-") for k in hints]
            reader.fail(f"pass '{cls.name}' has no option '{key}'{did_you_mean(key, known)}", at, f"its options: {', '.join(known) or 'none'}")
        value = _read_value(reader) if reader.take("=") else True
        try:
            options[field] = convert(value, hints[field])
        except ValueError:
            reader.fail(f"option '{key}' of '{cls.name}' takes {_type_name(hints[field])}", at)
        reader.take(",")
    return options


def _read_value(reader: _Reader) -> Any:
    if reader.take("["):
        items = []
        while not reader.take("]"):
            items.append(_read_value(reader))
            reader.take(",")
        return tuple(items)
    word = reader.word("a value")
    if word.startswith('"'):
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return {"true": True, "false": False, "none": None}.get(word, word)


def option_types(cls: type[Pass]) -> dict[str, Any]:
    """Option field -> its type, in order of definition."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def convert(value: Any, kind: Any) -> Any:
    """`value` as the option type `kind`; raises ValueError."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return _convert_union(value, typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        items = value if isinstance(value, tuple) else (value,)
        return tuple(convert(v, typing.get_args(kind)[0]) for v in items)
    if kind is bool:
        return _only(value, bool)
    if kind in (int, float):
        return kind(_only(value, str))
    if kind is str:
        return {True: "true", False: "false", None: "none"}.get(value, value) if not isinstance(value, tuple) else _only(value, str)
    return _only(value, kind)


def _convert_union(value: Any, kinds: tuple[Any, ...]) -> Any:
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(value, kind)
            except ValueError:
                continue
    raise ValueError(value)


def _only(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(value)
    return value


def _type_name(kind: Any) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a word"}
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return " or ".join(_type_name(k) for k in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list like [a, b]"
    return names.get(kind, "none" if kind is type(None) else str(kind))


# ---------------------------------------------------------------- printing


def print_pipeline(passes: Iterable[Pass]) -> str:
    """The text that `parse_pipeline` reads back to equal passes; options at their defaults are left out."""
    return ",".join(print_pass(p) for p in passes)


def print_pass(pass_: Pass) -> str:
    options = [f"{k.replace('_', '-')}={_print_value(v)}" for k, v in pass_.options().items()]
    return f"{pass_.name}{{{', '.join(options)}}}" if options else pass_.name


def _print_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_print_value(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and not re.fullmatch(r'[^\s,{}\[\]="]+', value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def print_pass_signature(cls: type[Pass]) -> str:
    """The pass with every option at its default."""
    hints = option_types(cls)
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    options = [f"{k.replace('_', '-')}={_print_value(defaults[k])}" for k in hints]
    return f"{cls.name}{{{', '.join(options)}}}" if options else cls.name
