"""The commands of ``surefoot``, one module each: ``add_arguments(parser)`` and ``run(args) -> exit status``.

The modules import nothing heavy before ``run``: their options must be known to answer ``--help`` at once.
"""
