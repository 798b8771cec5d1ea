"""Training of draft heads on what the target itself says. Nothing at run time imports this."""
