"""MirrorMaker 2: its connectors, and the names, filters and settings they share."""
