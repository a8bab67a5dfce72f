"""Record batches and the two hot messages, as bytes: no sockets, no clock, no loop."""
