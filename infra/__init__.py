"""What to rent: the fleet's settings, the instance catalog and the CDKTF stacks."""
