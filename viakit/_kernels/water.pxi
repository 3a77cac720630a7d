# Water: molecular dynamics.
