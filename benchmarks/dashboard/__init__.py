"""Size of the answers, first paint and steady load of the library page with a growing number of domains."""
