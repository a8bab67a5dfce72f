"""Holds the built-in converters, transforms, predicates and the file source, under Java's class names."""
