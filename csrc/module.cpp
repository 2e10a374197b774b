// The Python module: `_C`, and for the tests a second time as `_simt`, where the drafter runs the emulated CUDA kernels.
#include "bindings.h"

#if !defined(EAGLE3_PYTHON_MODULE)
#define EAGLE3_PYTHON_MODULE _C
#endif

PYBIND11_MODULE(EAGLE3_PYTHON_MODULE, m) { eagle3::bind(m); }
