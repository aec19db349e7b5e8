"""The backend that wraps a backend, and the rehearsal of what it would do."""
