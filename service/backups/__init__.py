"""Backups of a library: catalog and index in a folder or tar archive, with checksums."""
