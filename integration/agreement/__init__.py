"""Agreement: a pipeline writes and keeps the same live with kills, bounded, and in a backfill.

`shapes.py` has pipelines that together use what the API has, `inputs.py` what each pipeline reads,
`cases.py` which pipelines there are and how their outputs are compared, `runs.py` the three ways to
run one, `outcome.py` what a run has left. `integration/test_agreement.py` compares.
"""
