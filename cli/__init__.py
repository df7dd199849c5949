"""The ``cinestrata`` command line."""
