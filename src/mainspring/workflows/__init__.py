"""Durable workflows: events, decisions, the rules for them, and the service that begins runs and rings their alarms."""
