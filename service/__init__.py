"""What the product does: tasks and their life cycle, the catalog, jobs, search, and the figures it shows."""
