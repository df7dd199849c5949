"""Search within one segment: exact scans on a CPU or a GPU, and ANN structures."""
