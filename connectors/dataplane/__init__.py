"""The data plane: what a Spark task runs to copy batches, and the values that pass between it and the worker."""
