"""The store's format on disk: durable files, folders, manifest, segment files and tombstones."""
