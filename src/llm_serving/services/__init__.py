"""What runs, whatever its kind: blueprints, deployments and their services, and the seam to the kinds."""
