"""The commands: names, options and implementations. Expensive packages are imported when a command runs."""
