"""The pure heart: settings, errors and decisions; no clock, no loop, no sockets, no chance."""
