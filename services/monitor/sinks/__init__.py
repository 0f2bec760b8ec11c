"""Where alerts are told: one module per way, and the doer that delivers each alert once."""
