"""Which rollout goes to which engine, and when: decisions alone, without engines, clocks or input and output."""
