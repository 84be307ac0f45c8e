"""The processes of a service: a supervisor, its workers, and two background processes.

The supervisor starts and replaces the others. Workers answer HTTP requests; the learner fits the
model again with new events; online evaluation measures the served models on new events.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
