"""Bytes to messages and back: what Gearman's port and its clients send, without input and output."""
