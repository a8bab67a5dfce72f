"""``heliograph check``: what would come of a file, and nothing is changed."""
