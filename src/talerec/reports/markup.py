"""HTML and SVG from values. A plain `str` is somebody's text and is escaped; only `Html` is markup."""

from __future__ import annotations

import html
import re

# XML has no escape for these, and half of a surrogate pair cannot be written to a file.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta", "br"})
_SHAPES = frozenset({"path", "line", "rect", "circle"})  # written as <name/> when they are empty


class Html(str):
    """Text that is markup already: made by this module, never from what people wrote."""

    __slots__ = ()


def escape(text: object) -> Html:
    """A value as text without any markup in it; what is `Html` already stays as it is."""
    if isinstance(text, Html):
        return text
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return Html(html.escape(printable, quote=False).replace('"', "&quot;"))


def join(*children: object) -> Html:
    """One piece after the other; None is left out."""
    return Html("".join(escape(child) for child in children if child is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. Attributes that are None are left out; `class_` is class, `text_anchor` text-anchor."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID or (not children and name in _SHAPES):
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")
