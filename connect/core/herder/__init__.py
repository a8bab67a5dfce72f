"""The herder: one worker's decisions in a Connect group, as a state machine."""
