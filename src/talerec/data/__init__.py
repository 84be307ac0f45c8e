"""Logs: reading, cleaning, splitting and describing interactions of users with items.

A `Log` holds interactions sorted by user and time, with ids translated to positions by a
`Vocabulary`. `Histories` are the parts of a log that a model gets at request time. The packages
`read` and `split` read logs from files and databases, and split them into training and test rows.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
