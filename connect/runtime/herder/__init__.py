"""Drives the herder, performs its effects, and answers REST."""
