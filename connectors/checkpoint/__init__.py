"""MirrorCheckpoint."""
