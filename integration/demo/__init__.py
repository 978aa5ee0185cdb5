"""The demo, with its producer and its independent checker. `docker/compose.yaml` uses them too."""
