"""Types the pages of the documentation: their commands run on a real broker."""
