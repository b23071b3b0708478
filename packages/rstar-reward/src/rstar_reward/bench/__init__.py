"""`rstar-reward bench`: verdicts per CPU-second, beside other graders, on generated pairs."""
