"""MirrorCheckpoint: offsets of consumer groups, translated for the target."""
