"""Declarations of the commands: names, arguments and options. Each imports its implementation when it runs."""
