"""What `fleet.yaml` rents: its settings, the instance groups they resolve to, their limits, cost and manifests."""
