"""What tidegate costs beside loops written by hand, and its rooms one by one."""
