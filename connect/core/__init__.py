"""Holds settings, errors and decisions, without clock, event loop, sockets and random numbers."""
