"""Control messages over gRPC: generic handlers, one method, our own bytes. Driver of
`ports.rpc`.
"""
