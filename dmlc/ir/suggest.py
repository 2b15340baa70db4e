"""Did-you-mean for wrong names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def did_you_mean(word: str, known: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """`; did you mean 'x'?` for the nearest known word, or nothing. `aliases` are other systems' words for ours."""
    if aliases and word in aliases:
        return f"; did you mean '{aliases[word]}'?"
    from difflib import get_close_matches

    near = get_close_matches(word, list(known), 1, 0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
