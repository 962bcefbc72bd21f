"""Submits whose unique has a live job: the rules about them, and the successors that wait for the end of that job."""
