"""How far each partition of a task is copied: stored, taken over, checked."""
