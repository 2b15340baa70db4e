"""Did-you-mean for wrong names."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'fuse'?` when a known name is near, else an empty string."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
