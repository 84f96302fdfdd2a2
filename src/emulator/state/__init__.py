"""The platform's state: jobs, the queue and the workers. No HTTP."""
