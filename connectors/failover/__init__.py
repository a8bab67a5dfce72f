"""Groups moved from one cluster to the other, and back: a plan first, then steps that can be taken again."""
