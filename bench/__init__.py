"""Java MirrorMaker 2 and Heliograph on the same topics in one run, and the ceiling that the broker sets."""
