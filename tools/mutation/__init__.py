"""Faults planted in a package, and the choice of tests that can see each of them.

`faults` lists the faults of source files. `calls` makes a copy of a package record which functions
each test calls, with `recorder` in that copy. `choice` picks the tests of a fault from these
records, and `trials` runs them. `plugin` is for the pytest processes. `mutants.py` is the command.
"""
