"""Search within one segment: exact scans, ANN structures, GPU scans, threads."""
