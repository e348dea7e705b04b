"""What cannot work together, refused before anything is rented."""
