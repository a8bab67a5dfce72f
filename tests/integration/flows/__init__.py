"""Tests that share one mirror, each with flows of its own; the folder's tests run in one process."""
