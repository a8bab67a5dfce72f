"""The link between a worker and its slices: messages, server, version of the code."""
