"""Agreement: a pipeline writes the same output and keeps the same state in three kinds of runs.

The three kinds are a live run with kills, a bounded run, and a backfill. `shapes.py` holds
pipelines that together use the whole API. `inputs.py` holds the input of each pipeline. `cases.py`
lists the pipelines and says how their outputs are compared. `runs.py` holds the three ways to run
one. `outcome.py` reads the result of a run. `integration/exactly_once/test_agreement.py` compares.
"""
