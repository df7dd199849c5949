"""The catalog: the database that is the truth about tasks, videos, releases and shards."""
