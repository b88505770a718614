"""Differential privacy: accounting, exact noise, one-shot releases and the ledger of what was released."""
