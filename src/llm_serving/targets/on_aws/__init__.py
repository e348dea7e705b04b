"""What the targets on AWS share."""
