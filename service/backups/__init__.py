"""Backups of a library: catalog and index in a folder or a tar archive, with checksums."""
