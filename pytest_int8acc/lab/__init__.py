"""Where any plan of a case is tried, priced, built and proved."""
