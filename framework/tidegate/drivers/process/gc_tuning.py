"""How rarely a process that works through batches collects garbage.

Called by the slot, when all is there that lives as long as it does, and by the benchmarks of its
parts.
"""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (200_000, 50, 50)
"""Of `gc.set_threshold`; `settle_gc` says why."""


def settle_gc() -> None:
    """Keep what there is out of all further collections, and make those rare.

    Nothing of ours that a record makes is a cycle: batches, values and state are freed by their
    reference counts, and a collection finds none of them. But a batch of 250 records holds more
    than 700 objects for a moment, so with Python's own thresholds (700, 10, 10) the young are
    collected in nine of ten batches (0.04 to 0.3 ms), the middle ones in each twelfth (0.2 to 0.7
    ms) and, while keyed state grows, all of it three to six times in 1000 batches (90 to 130 ms, at
    worst 340: a pause in which no barrier passes). That was a fifth to a half of the CPU of a keyed
    loop. With ours there was none among 100,000 keys, and one in 1250 batches among 2,000,000 keys
    that were nearly all new, 2 % of the CPU (measured on 2 cores at 2.5 GHz).

    200,000 is far above what a batch holds, and as many as `state.cache_entries`: only what grows
    gets there, and a collection of so many takes 26 to 36 ms. 50 and 50, so that the older
    generations, where state is, are not walked before ten million objects have been added. Zero, no
    collection at all, would keep the cycles that libraries and user code do make for ever
    (kafka-python leaves one for each failed connection).

    Frozen are the modules, the user's among them, what `open` has loaded, and restored state: a
    walk over the modules alone is 37 to 46 ms. Collected before, because a cycle that is frozen is
    never freed; what the zygote had imported is frozen since the fork, so that this is quick.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
