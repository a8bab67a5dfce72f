"""Copying by key and through message handlers, for MirrorMaker 1: what a slice runs."""
