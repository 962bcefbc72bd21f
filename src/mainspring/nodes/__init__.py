"""Many nodes on one store: who is there, whose lease has ended, and who takes which jobs."""
