"""The ``cinestrata`` command: the one place where everything is put together."""
