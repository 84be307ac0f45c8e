"""The event store: users' events and deletions in SQLite or PostgreSQL.

Events are written durably before they are acknowledged and read back in commit order. The room
knows nothing of models; measurements of models are stored here as plain rows.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
