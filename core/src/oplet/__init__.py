"""WebGPU operators for Python, as plugins."""
