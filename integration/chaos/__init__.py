"""Attacks on real clusters, and the record of them: `make chaos` writes `docs/kill-matrix.md`.

`scenarios` says what an attack is and what it is given; `matrix` and `cells` are the attacks on our
own processes, at every named step of the commit protocol; `broker_faults`, `network_faults` and
`storage_faults` are those on what they stand on; `backfills` has all that are made on backfills
(`backfill_cells`, `backfill_strikes`, `backfill_faults`, `backfill_storage`). All are listed in
`__main__.MODULES`. `report` keeps the results and renders them. Nothing here judges: that is the
independent checker's.

What faults are made with: `proxy` is a network that can fail, `switchboard` lays every connection
of a cluster through it, `storing` is a storage that fails by rules, `mains` and `command` are the
processes' mains with both, `cluster` is brokers to attack, `live` a job that is fed and watched
meanwhile, `stories` a row of attacks on it. Nothing of this is known to the framework.
"""
