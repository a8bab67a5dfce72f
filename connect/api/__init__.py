"""What the author of a connector sees."""
