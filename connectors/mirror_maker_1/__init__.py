"""MirrorMaker 1 (``kafka-mirror-maker``): topics keep their names, a group at the source says who copies what."""
