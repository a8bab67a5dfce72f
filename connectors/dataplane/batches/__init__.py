"""Batches of one partition: checked, decided on, rewritten, sent and accounted for; no I/O."""
