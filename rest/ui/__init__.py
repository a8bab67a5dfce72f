"""The dashboard at ``/ui``: static files, and what its pages read."""
