"""Reading logs and item tables from files, folders, pipes, web addresses and databases.

`read_log` and `read_items` are the entry points; every error names the file and what is wrong in
one line, and no message contains a password.
"""

from talerec.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
