"""The recall matrix of the catalog: cells, complete matrices, and a map of bounded size."""
