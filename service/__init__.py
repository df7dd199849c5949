"""The service: tasks and their life cycle, catalog, workers, search, and library figures."""
