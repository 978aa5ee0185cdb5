"""What the planes ask of the world, as Protocols: clock, logs, blobs, processes, transport.

No implementation lives here. Real ones are in `drivers`, fakes in `testing`.
"""
