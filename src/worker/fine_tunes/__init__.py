"""Fine-tunes: from rows on the volume to an adapter that all workers serve by its name.

``creation`` validates a request, parses its ``hyperparameters``, and stores its rows as files. From
then on a fine-tune is a ``record``: a directory on the volume, whose files are its state. A job
runs a ``step`` under the fine-tune's lease. If need be, it reserves ``memory``; then it starts
``trainer``, a program of its own, as a ``child``. Each of these attempts has its own directory, and
continues from the newest checkpoint of all of them. ``spec`` has the files that the step and the
trainer write for each other, and ``events`` merges what the attempts report. When a training has
finished, ``publish`` copies the adapters to where all workers find them, and writes result files.

The trainer imports ``spec``, so this module imports nothing.
"""
