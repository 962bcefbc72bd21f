"""What the one master of all nodes does: it assigns, publishes, recovers, wakes and cleans."""
