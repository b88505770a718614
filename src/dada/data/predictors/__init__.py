"""Families of base predictors: stumps, linear features, random Fourier features, and unions of them."""
