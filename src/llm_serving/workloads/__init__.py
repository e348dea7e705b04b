"""What a blueprint can be: a package for each kind of workload, and how files are read and rendered."""
