"""The sections of the service's settings that belong to one of its rooms."""
