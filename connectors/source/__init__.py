"""MirrorSource: topics of one cluster copied to another, in slices that Spark runs."""
