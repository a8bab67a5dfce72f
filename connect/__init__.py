"""Kafka Connect in Python: wire formats, pure core, I/O, runtime and command line."""
