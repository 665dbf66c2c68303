"""Sandboxes as Docker containers; the only package that knows Docker. Import what you need from its modules."""
