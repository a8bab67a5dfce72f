"""Compare what a flow has copied with its source, in a Spark job that shares no code with the copy."""
