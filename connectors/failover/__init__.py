"""Failover, failback and undo: collect a snapshot, plan, execute with a journal."""
