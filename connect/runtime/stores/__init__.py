"""The config and status topics: folds of what is read, and writers."""
