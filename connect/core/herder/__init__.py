"""Decides for a worker in a Connect group, as a state machine: the herder."""
