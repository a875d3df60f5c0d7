"""Is every hard rule held by a test? Break it in a copy of the source and see who notices."""
