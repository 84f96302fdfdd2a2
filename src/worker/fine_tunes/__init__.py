"""Fine-tunes: from rows on the volume to an adapter that all workers serve by its name.

``creation`` validates a request, parses its ``hyperparameters``, and stores its rows as files. From
then on a fine-tune is a ``record``: a directory on the volume, whose files are its state. A job
runs a ``step`` under the fine-tune's lease. If need be, it reserves the ``memory`` that the
training is estimated to need; then it starts ``trainer``, a program of its own, as a ``child``.
``spec`` has the files that the step and the trainer write for each other, and ``events`` merges
what is reported. When a training has finished, ``publish`` copies the adapters to where all workers
find them, and writes result files.

Each run of the trainer is an attempt, with a directory of its own, and continues from the newest
checkpoint of all attempts (``trainer.output.copy_newest_checkpoint``). Its events are durable
before a checkpoint is (``on_save`` in ``trainer.training``), and begin with the step from which it
resumes (``trainer.output.EventLog``), so that ``events._merge_attempts`` leaves out what earlier
attempts reported of later steps. If the trainer dies, the step begins another attempt, as long as
there is progress. If the worker dies, its trainer exits, too, and the job that acquires the lease
(``worker.long_work`` says which, and when) runs the same step: it begins an attempt, or publishes
what a finished one has left. A worker that was only frozen finds its lease lost, and kills its
trainer, which until then has written only to its own attempt.

The trainer imports ``spec``, so this module imports nothing.
"""
