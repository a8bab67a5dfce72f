"""MirrorSource: connector, tasks, slices."""
