"""The judge of ``heliograph verify``: a mirror's copy, damage planted in it, and what is to be found."""
