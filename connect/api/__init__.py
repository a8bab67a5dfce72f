"""Interfaces for authors of plugins: connectors, converters, transforms, predicates, policies, filters, handlers."""
