"""Random faults against a running service, with a checker that shares no code with the product."""
