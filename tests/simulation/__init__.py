"""Whole groups of real herders in a world of our own: time, network, brokers and faults come from a seed."""
