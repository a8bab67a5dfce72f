"""Read-only checks of flows for commands: plan, drift, takeover, ACLs, comparison of topics."""
