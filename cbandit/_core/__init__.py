"""The core that every room stands on.

``checks`` looks at arguments, ``arguments`` notes them, ``devices`` and ``randomness``
serve tensors, ``files`` and ``checkpoint`` the disk, ``distributed`` several processes.
"""
