"""What tests/faults and tests/soak share: processes, load that judges every answer, metrics, servers that misbehave."""
