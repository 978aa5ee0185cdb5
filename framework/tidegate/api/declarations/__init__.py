"""What all declarations share: their place in the code, their name, and checks of options."""
