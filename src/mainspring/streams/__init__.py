"""Streams of jobs and runs: numbered items that stay, how stores keep them, and the clients that read them live or later."""
