"""The catalog: the database that holds the truth about tasks, videos, releases and shards."""
