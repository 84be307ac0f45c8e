"""The shape of a Python source tree: sizes, imports, cycles, rooms, words.

`house.py`, `docnames.py` and `cold_reading.py` are the commands.
"""
