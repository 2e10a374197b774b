// Which CPU level runs: the best the processor has, or the one EAGLE3_CPU names (plain, avx2, avx512, avx512_bf16).
#pragma once

#include "vector_kernels.h"

namespace eagle3::cpu {

// The table in use, chosen at the first call. Throws c10::Error if EAGLE3_CPU is unknown or the processor lacks it.
const VectorKernels& vector_kernels();

inline const RowKernels& row_kernels(DType dtype) { return vector_kernels().by_dtype[static_cast<int>(dtype)]; }

inline int64_t element_size(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

const char* level_name();

}  // namespace eagle3::cpu
