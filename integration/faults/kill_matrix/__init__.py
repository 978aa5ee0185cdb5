"""Attacks real clusters and records the results.

`make chaos` writes `docs/evidence/kill-matrix.md`.

`scenarios` defines an attack and its surroundings. `matrix` and `cells` attack our own processes,
at every named step of the commit protocol. `broker_faults`, `network_faults` and `storage_faults`
attack the systems that a cluster depends on. `backfills` holds all attacks on backfills
(`backfill_cells`, `backfill_strikes`, `backfill_faults`, `backfill_storage`). `__main__.MODULES`
lists all of them. `report` keeps the results and renders them. None of these modules judges an
output: the independent checker does.

Other modules make the faults. `proxy` is a network that can fail, and `switchboard` routes every
connection of a cluster through it. `faulty_storage` is a storage that fails by rules. `mains` and
`command` are the processes' mains with both. `cluster` starts brokers to attack. `live` is a job
that gets input and is watched during attacks, and `fault_sequences` is a sequence of attacks on it.
The framework knows nothing of these modules.
"""
