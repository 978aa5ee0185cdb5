"""One machine's slots: registers them, sends heartbeats, starts and watches slot processes.

It never touches a record or a state; those live in the slot processes.
"""
