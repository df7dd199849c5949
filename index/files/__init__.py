"""On-disk format of the store: durable files, folders, manifest, segment files and tombstones."""
