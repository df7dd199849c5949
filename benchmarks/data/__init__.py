"""Videos for benchmarks: the video world, published data sets and folders with manifests."""
