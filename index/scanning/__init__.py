"""Search within one segment: exact scans, ANN structures, GPU scans, threads and the cache of mapped files."""
