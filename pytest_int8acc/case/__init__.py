"""A spec made executable: its forms, its judge, its plan."""
