"""Models: a log is fitted, histories are ranked. All commands work with all of them.

`core` is the contract and inference, one package per family has the models, `catalog` lists them by
name and loads saved ones, `updates` adds rows to a fitted model. The names below are loaded on
first use: importing `talerec.models.core` loads no model.

Examples
--------
>>> from talerec.models import DEFAULT, MODELS
>>> DEFAULT
'tempo'
>>> MODELS["tale"](reg=50).params["reg"]
50.0
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
