"""The master's work: it assigns and publishes tasks, wakes delayed ones, starts recoveries and folds journals."""
