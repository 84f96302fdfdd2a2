"""Creates, changes and deletes endpoints with version 2 of the platform's REST API."""
