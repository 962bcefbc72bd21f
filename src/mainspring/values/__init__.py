"""Published values of jobs and runs: the last value of each name, how stores keep it, and the clients that wait for it."""
