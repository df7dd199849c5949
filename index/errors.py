"""Errors that the index raises; every message names the shard, release or file.

ShardStoreError
├── ManifestError         the manifest is unreadable, altered, or has another schema
├── ShardCorrupt          a file does not match its checksum, or contradicts its description
├── ShardMissing          a shard, or an ID within a shard, does not exist
├── ShardInvalid          data to write or publish violates a rule of the format (also a ValueError)
├── ReleaseCorrupt        a release is missing, or one of its files does not match its checksum
├── StoreUnavailable      the server that stores the vectors does not respond, or refuses
├── DeviceMissing         a GPU is configured, but none is available
├── WordsUnreadable       the word files are missing, damaged, or written by another version
└── FingerprintMismatch   query and shard come from different encoders
"""

from __future__ import annotations


class ShardStoreError(Exception):
    """Base class of all index errors."""


class ManifestError(ShardStoreError):
    """The manifest cannot be trusted."""


class ShardCorrupt(ShardStoreError):
    """A stored shard differs from its digests."""


class ShardMissing(ShardStoreError):
    """A shard, or an ID within a shard, does not exist."""


class ShardInvalid(ShardStoreError, ValueError):
    """Data to write or publish violates a rule of the format."""


class ReleaseCorrupt(ShardStoreError):
    """A stored release differs from its digests, or is not in the manifest."""


class StoreUnavailable(ShardStoreError):
    """The vectors are in a remote store that cannot be reached, or refuses requests."""


class DeviceMissing(ShardStoreError):
    """The configured device does not exist on this machine."""


class WordsUnreadable(ShardStoreError):
    """The word files cannot be used; the catalog has their texts."""


class FingerprintMismatch(ShardStoreError):
    """Query and shard come from different encoders."""
