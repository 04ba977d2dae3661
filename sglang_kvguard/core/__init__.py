"""Ledger, seal, fence, scrubber, quarantine, verdicts, policy: torch only, no engine."""
