"""Implementation of each command; `cli.main` declares the options and imports these modules lazily."""
