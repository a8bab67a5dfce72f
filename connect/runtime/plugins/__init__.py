"""Plugins found, called, and their configs validated."""
