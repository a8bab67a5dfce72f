"""The offset map: source offset to target offset, both ways."""
