"""Third-party clients as their users start them: in front of a worker, our proxy or a platform."""
