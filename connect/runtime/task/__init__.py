"""A source task: its records, offsets, errors and clients."""
