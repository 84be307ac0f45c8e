"""The users of one worker: their histories, events and deletions.

A user's history is merged from the model's training log and the events of the store; new events
are validated and handed to the thread that writes to the store.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
