"""Implementation of each command; `cli.declarations` declares the options and imports these modules lazily."""
