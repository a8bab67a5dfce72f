"""What commands find out about a flow without changing anything: plan, drift, takeover, ACLs, comparison."""
