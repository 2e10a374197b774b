"""What tools/gpu_check.sh runs. Each step is a process of its own: a fault on a GPU leaves nothing usable in its process.

`steps.py` says which commands a step is; the modules named after steps are what those commands run.
"""
