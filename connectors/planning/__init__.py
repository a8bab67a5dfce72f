"""What a run would change or continue, for commands that only look: plan, drift, takeover, check."""
