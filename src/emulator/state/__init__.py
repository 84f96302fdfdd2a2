"""The platform's state: jobs, the queue and the workers, without HTTP."""
