"""Commands that look, plan, and move groups."""
