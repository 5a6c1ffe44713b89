"""What the checks with processes of their own share: processes, load that judges every answer, metrics, servers that misbehave."""
