"""The demonstration site: an application that uses deadletter."""
