"""The recall matrix in the catalog: cells, complete matrices, and a map of bounded size."""
