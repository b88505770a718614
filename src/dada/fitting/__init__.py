"""From a population and settings to models: settings, held-out choices, lam, newcomers."""
