"""What every driver of a port must do; each suite is run on the fake and on the real one."""
