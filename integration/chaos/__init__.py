"""Attacks on real clusters, and the record of them: `make chaos` writes `docs/kill-matrix.md`.

`scenarios` says what an attack is and what it is given; `matrix` and `cells` are the attacks on our
own processes, at every named step of the commit protocol, and other modules bring their own (they
stand in `__main__.MODULES`); `report` keeps the results and renders them. Nothing here judges: that
is the independent checker's.
"""
