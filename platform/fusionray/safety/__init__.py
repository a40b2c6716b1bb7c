"""Safety: signed provenance, visible marks, consent, and the audit log."""
