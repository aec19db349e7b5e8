"""For the interpreter inside Triton, which is an early 3.11 but imports the standard library of this environment's, perhaps a later one.

From 3.11.7 on, the library asks locks for something that the early interpreter's don't have.
"""

import threading
from multiprocessing import resource_tracker

if not hasattr(threading.RLock(), "_recursion_count") and hasattr(threading._PyRLock, "_recursion_count"):
    resource_tracker._resource_tracker._lock = threading._PyRLock()
