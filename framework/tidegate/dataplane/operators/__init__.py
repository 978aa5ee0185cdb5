"""The steps of a pipeline at run time: fused stateless chains and keyed functions over batches."""
