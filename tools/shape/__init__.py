"""How a Python source tree is built: sizes, imports, cycles, rooms. `house.py` and `docnames.py` are the commands."""
