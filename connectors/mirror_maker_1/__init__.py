"""``kafka-mirror-maker``: MirrorMaker 1."""
