"""The core, which all other rooms import.

``checks`` checks arguments, ``arguments`` records them, ``devices`` and ``randomness``
serve tensors, ``files`` and ``checkpoint`` the disk, ``distributed`` several processes.
``version`` states the version.
"""
