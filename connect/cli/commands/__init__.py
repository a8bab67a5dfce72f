"""Commands that check, plan, show and move groups."""
