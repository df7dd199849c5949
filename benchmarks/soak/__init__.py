"""Load a service for a long time: at 80 % of its capacity, while a task is learned, and at 200 %."""
