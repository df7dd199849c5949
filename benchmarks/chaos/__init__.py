"""Random faults against a running service, with a checker that does not use the modules of the product."""
