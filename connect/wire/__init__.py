"""Encodes and decodes record batches, Produce and Fetch messages: bytes only, without sockets, clock or event loop."""
