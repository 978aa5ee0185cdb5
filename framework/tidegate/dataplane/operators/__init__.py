"""The steps of a pipeline as they run: fused stateless chains and keyed functions over batches."""
