"""What the policy is: chat format, token ledger, tool-call syntax, weights"""
