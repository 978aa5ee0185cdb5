"""Control messages over gRPC: a generic handler with one method, and tidegate's own encoding. This
is the driver of `ports.rpc`.
"""
