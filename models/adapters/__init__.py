"""Adapters that methods train inside the towers of a frozen backbone."""
