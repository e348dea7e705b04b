"""What `fleet.yaml` rents: its settings, the machine groups they resolve to, their limits, cost and manifests."""
