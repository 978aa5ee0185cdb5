"""Deliberate bugs, and the tests that find them: how we know that the tests can fail.

One module per room of code (`test_channels.py`, …), each with its `MUTANTS`. A mutant is a small
change of one or a few functions (`planting`), made while its detector runs and undone after it; no
switch for it exists outside of here. A detector is an ordinary run of a contract, a property or the
simulator under a seed. `python -m tests.mutants` prints in how many seeds each mutant is found.
"""
