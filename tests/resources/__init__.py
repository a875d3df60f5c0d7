"""What happens when something runs out: the disk, the connections, the memory."""
