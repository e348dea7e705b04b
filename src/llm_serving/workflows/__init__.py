"""What `install.sh` runs, step by step."""
