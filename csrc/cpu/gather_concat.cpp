#include <cstring>

#include "rms_norm.h"
#include "rows.h"

namespace eagle3::cpu {
namespace {

// Outputs past this size do not fit the last-level cache, so that writing around it costs nothing later.
constexpr int64_t kStreamBytes = int64_t{64} << 20;

void gather_row(const GatherConcatParams& p, int64_t m, bool stream) {
  const RowKernels& kernels = row_kernels(p.dtype);
  const int64_t size = p.hidden_size, bytes = size * element_size(p.dtype);
  const int64_t source = index_at(p.rows, m);
  void* out = advance(p.out, m * p.out_stride, p.dtype);
  // Only -1 is legal padding; other bad rows are refused by the op's check, and without it must not read out of bounds.
  if (source < 0 || source >= p.num_source_rows) {
    std::memset(out, 0, p.num_states * bytes);
    return;
  }
  float squares = 0.0f;
  for (int64_t j = 0; j < p.num_states; ++j) {
    const void* state = advance(p.states[j], source * p.state_strides[j], p.dtype);
    void* chunk = advance(out, j * size, p.dtype);
    if (p.num_norm_weights == p.num_states) {
      rms_norm_row(kernels, state, p.norm_weights[j], p.eps, chunk, size);
    } else if (stream) {
      vector_kernels().stream_copy(chunk, state, bytes);
    } else {
      std::memcpy(chunk, state, bytes);
    }
  }
  if (p.num_norm_weights == 1 && p.num_states > 1) {
    const int64_t width = p.num_states * size;
    for (int64_t j = 0; j < p.num_states; ++j) squares += kernels.squares(advance(out, j * size, p.dtype), size);
    kernels.scale_gain(out, inverse_rms(squares, width, p.eps), p.norm_weights[0], out, width);
  }
}

}  // namespace

void gather_concat(const GatherConcatParams& p) {
  const int64_t width = p.num_states * p.hidden_size;
  const bool stream = p.num_norm_weights == 0 && p.num_rows * width * element_size(p.dtype) > kStreamBytes;
  for_rows(p.num_rows, width, [&](int64_t m) { gather_row(p, m, stream); });
}

}  // namespace eagle3::cpu
