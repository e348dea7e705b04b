"""What to rent: the fleet's settings, the instance catalogue and the CDKTF stacks."""
