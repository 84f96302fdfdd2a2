"""Which GPUs of the platform hold a model: judged without having one (``--check --gpu``)."""
