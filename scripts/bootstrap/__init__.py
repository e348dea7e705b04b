"""What an account needs once, before the first stack: made by API calls, for Terraform itself keeps its state there."""
