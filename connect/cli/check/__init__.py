"""``heliograph check``: checks of a file before it is used."""
