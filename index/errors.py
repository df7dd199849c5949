"""What can go wrong with stored vectors; every message names the shard, release or file.

ShardStoreError
├── ManifestError         the manifest is unreadable, altered, or of a newer version
├── ShardCorrupt          a file does not match its checksum, or contradicts its description
├── ShardMissing          a shard, or an id within one, is not there
├── ReleaseCorrupt        a release is not there, or a file of it does not match its checksum
├── StoreUnavailable      the server that holds the vectors does not answer, or refuses
├── DeviceMissing         vectors are to be searched on a GPU, and there is none
├── FingerprintMismatch   a query of one encoder was about to meet vectors of another
└── ShardInvalid          what was to be written or published breaks a rule (also a ValueError)
"""

from __future__ import annotations

__all__ = [
    "DeviceMissing",
    "FingerprintMismatch",
    "ManifestError",
    "ReleaseCorrupt",
    "ShardCorrupt",
    "ShardInvalid",
    "ShardMissing",
    "ShardStoreError",
    "StoreUnavailable",
]


class ShardStoreError(Exception):
    """Root of the errors of the index."""


class ManifestError(ShardStoreError):
    """The manifest cannot be trusted."""


class ShardCorrupt(ShardStoreError):
    """A shard's folder does not hold what was written."""


class ShardMissing(ShardStoreError):
    """What was asked for is not in the store."""


class ReleaseCorrupt(ShardStoreError):
    """A release's folder does not hold what was written."""


class StoreUnavailable(ShardStoreError):
    """Another store holds the vectors, and cannot be reached or used."""


class DeviceMissing(ShardStoreError):
    """The device that settings ask for is not there."""


class FingerprintMismatch(ShardStoreError):
    """Query and shard come from different encoders."""


class ShardInvalid(ShardStoreError, ValueError):
    """What was to be written or published breaks a rule of the format."""
