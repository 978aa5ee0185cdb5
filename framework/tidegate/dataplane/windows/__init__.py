"""Windows at run time: records are assigned to windows, which are keyed state, and fire.

- `assigners.py`: the windows of a column of times; `calendars.py` those of a calendar.
- `accumulators.py`: the generated functions that fold records into a window, and
  `accumulator_source.py` their source.
- `panes.py`: the panes of sliding windows.
- `firing.py`: the results of a piece of a burst.
- `operator.py`: what all window operators have in common: the watermark, bursts, late records.
- `table_operator.py`, `aligned.py`, `by_key.py` (with `session_operator.py`) and
  `sliding_operator.py`: the layouts of state. Windows lie in tables by span, or are rows of their
  own, or lie in the row of their key, or are rows by pane.

`api/windows/window_step.py` declares the state.
"""
