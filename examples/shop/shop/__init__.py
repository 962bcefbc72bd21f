"""A web shop: tasks, schedules and workflows of Mainspring behind a front end of FastAPI."""
