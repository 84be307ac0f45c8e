"""Build HTML and SVG from values: plain text is escaped; only `Html` is markup."""

from __future__ import annotations

import html
import re

# XML has no escape for these, and half of a surrogate pair cannot be written to a file.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"meta", "br"})
_SHAPES = frozenset({"path", "line", "rect", "circle"})  # written as <name/> when they are empty


class Html(str):
    """Text that is markup (HTML or SVG), inserted unescaped; `escape` returns it as it is.

    Only functions of this module make it, never from unescaped user text.
    """

    __slots__ = ()


def escape(text: object) -> Html:
    """Return a value as escaped text; a value that is `Html` (markup) is returned unchanged.

    Characters that XML cannot contain become a replacement character.
    """
    if isinstance(text, Html):
        return text
    printable = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return Html(html.escape(printable, quote=False).replace('"', "&quot;"))


def join(*children: object) -> Html:
    """Concatenate children as markup, escaping plain text and skipping None."""
    return Html("".join(escape(child) for child in children if child is not None))


def format_coordinate(value: float) -> str:
    """Return a number rounded to a hundredth, without trailing zeros."""
    return f"{round(value, 2) + 0.0:g}"


def _attribute_text(value: object) -> str:
    """Return the value of an HTML attribute as text; floats are rounded to a hundredth."""
    return format_coordinate(value) if isinstance(value, float) else str(value)


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an HTML or SVG element with escaped children and attributes.

    Children that are `Html` are markup and not escaped; None is skipped. Attributes that are None
    are left out; `class_` becomes class, `text_anchor` text-anchor. Floats are rounded to a
    hundredth, without trailing zeros. Elements without content are written as <name/>.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID or (not children and name in _SHAPES):
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")
