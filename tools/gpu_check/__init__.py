"""What tools/gpu_check.sh runs. Each step is a process of its own: a fault on a GPU leaves its process useless.

`steps.py` says which commands a step is, `process.py` runs them; the modules named after steps are what they run.
"""
