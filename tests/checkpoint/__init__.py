"""The pure rules of checkpoints, and the commit protocol under zombies and lost answers."""
