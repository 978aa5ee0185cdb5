"""Windows as a user declares them: assigners, triggers, aggregates, and the step they become."""
