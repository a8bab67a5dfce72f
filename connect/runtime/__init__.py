"""Runs connectors and their tasks."""
