"""What can go wrong with stored vectors; every message names the shard or file.

ShardStoreError
├── ManifestError         the manifest is unreadable, altered, or of a newer version
├── ShardCorrupt          a file does not match its checksum, or contradicts its description
├── ShardMissing          a shard, or an id within one, is not there
├── FingerprintMismatch   a query of one encoder was about to meet vectors of another
└── ShardRefused          vectors or ids that must not be written
"""

from __future__ import annotations

__all__ = [
    "FingerprintMismatch",
    "ManifestError",
    "ShardCorrupt",
    "ShardMissing",
    "ShardRefused",
    "ShardStoreError",
]


class ShardStoreError(Exception):
    """Root of the errors of the index."""


class ManifestError(ShardStoreError):
    """The manifest cannot be trusted."""


class ShardCorrupt(ShardStoreError):
    """A content folder does not hold what was written."""


class ShardMissing(ShardStoreError):
    """What was asked for is not in the store."""


class FingerprintMismatch(ShardStoreError):
    """Query and shard come from different encoders."""


class ShardRefused(ShardStoreError):
    """What was to be written breaks a rule of the format."""
