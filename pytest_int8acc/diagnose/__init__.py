"""Why a case fails: causes, stages, layer errors, cheaper fixes, and the smallest piece that shows it."""
