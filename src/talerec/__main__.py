"""The command `talerec`, as `python -m talerec`."""

from __future__ import annotations

from talerec.cli.main import main

if __name__ == "__main__":
    main()
