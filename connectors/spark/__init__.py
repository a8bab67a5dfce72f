"""Spark: the driver process, its sessions and jobs."""
