"""Search within one segment: exact scans, ANN structures, GPU scans, threads, and a cache of mapped files."""
