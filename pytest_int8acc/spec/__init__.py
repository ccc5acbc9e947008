"""The keys that a user may write in a spec, the reader of spec files, and the JSON schema of specs."""
