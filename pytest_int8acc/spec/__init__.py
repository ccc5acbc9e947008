"""What a user may write: the models of a spec, reading it with positions, its JSON schema."""
