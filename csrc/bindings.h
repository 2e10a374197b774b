#pragma once

#include <pybind11/pybind11.h>

namespace eagle3 {

// Defines everything in the module `m`.
void bind(pybind11::module_& m);

}  // namespace eagle3
