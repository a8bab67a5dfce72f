"""The converters, transforms, predicates and the file source that come with a worker, under Java's class names."""
