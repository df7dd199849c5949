"""Estimates of the remaining time of tasks, from the measured rate of a stage and the stages of finished tasks."""
