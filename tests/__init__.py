"""Unit, property, wall and tidy tests: no broker, no container, under a minute in all."""
