"""The TaskManager: registers the slots of one machine, sends heartbeats, starts and watches slots.

It never handles records or state. Only the slot processes do.
"""
