"""Checkpoint storages as earlier versions wrote them: today's code restores each.

`storages/<generation>/<name>/` holds a storage and, in `world.json`, the Kafka side of it. `make
golden` writes a new generation with the code of the day and leaves the older ones alone. `formats`
pins the form of all that is stored: a change without a new generation fails.
"""
