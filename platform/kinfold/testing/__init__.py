"""Doubles and suites that ship with kinfold, for tests of what is built on it; import from the modules."""
