"""What MirrorSource keeps in step on the target: topics, their configs, ACLs."""
