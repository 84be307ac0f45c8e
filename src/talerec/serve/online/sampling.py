"""Shares of users: which ones are measured, and which ones a candidate answers. A user's part never changes, on any machine."""

from __future__ import annotations

from hashlib import blake2b

MEASURED, CANDIDATE = (
    b"measured",
    b"candidate",
)  # drawn apart: whom a candidate answers says nothing of who is measured


def hash_of(user: str, what: bytes) -> int:
    """63 bits that depend on the user alone."""
    digest = blake2b(user.encode(), digest_size=8, key=what).digest()
    return int.from_bytes(digest, "big") >> 1


def is_in_share(user: str, share: float, what: bytes) -> bool:
    """Is a user among this share of all users? Who is in a smaller share is in every larger one.

    Examples
    --------
    >>> is_in_share("ann", 1.0, MEASURED), is_in_share("ann", 0.0, MEASURED)
    (True, False)
    """
    return hash_of(user, what) < share * 2**63
