"""The service's settings, errors, limits and logging."""
