"""Videos for benchmarks: published data sets and folders with manifests."""
