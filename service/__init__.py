"""The service: tasks and their life cycle, the catalog, workers, search, and figures of the library."""
