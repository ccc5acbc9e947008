"""What mends a case: the precision search and its proof, other scales, migration."""
