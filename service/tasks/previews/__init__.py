"""Preview of a task from files on the machine of a client, before they are uploaded."""
