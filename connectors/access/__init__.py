"""Access rules: which of the source's are wanted on the target, and how they get there."""
