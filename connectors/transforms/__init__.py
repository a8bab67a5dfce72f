"""What transform settings say. Configurations and slices use it."""
