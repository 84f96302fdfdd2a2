"""Creates, changes and deletes endpoints over the platform's REST API, version 2."""
