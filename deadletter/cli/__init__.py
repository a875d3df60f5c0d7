"""The sub-commands of `manage.py deadletter`: each adds its arguments, then calls operations."""
