"""The demonstration site: what an application that uses deadletter looks like."""
