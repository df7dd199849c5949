"""Settings, errors, schemas, limits and logging of the service."""
