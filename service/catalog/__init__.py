"""The catalog: the database with the truth about tasks, videos, releases and shards."""
