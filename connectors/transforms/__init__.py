"""Applies transforms and ``transform.sql`` to records, and finds the target names of topics."""
