#include "../core/indices.h"
#include "rms_norm.cuh"

namespace eagle3::cuda {
namespace {

// Block (n, 0): the embedding half of row n; block (n, 1): the hidden half.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kNormThreads) draft_input_kernel(const DraftInputParams p) {
  const int64_t n = blockIdx.x, size = p.hidden_size, token = index_at(p.tokens, n);
  const bool is_hidden = blockIdx.y == 1;
  const bool is_padding = is_padding_token(token, !p.token_embeddings, p.vocab_size);
  T* out = static_cast<T*>(p.x) + (2 * n + blockIdx.y) * size;
  const T* in = nullptr;
  if (is_hidden) {
    in = static_cast<const T*>(p.hidden) + n * p.hidden_stride;
  } else if (p.token_embeddings) {
    in = static_cast<const T*>(p.token_embeddings) + n * p.token_embeddings_stride;
  } else {
    in = static_cast<const T*>(p.embed_weight) + token * size;
  }
  const T* gain = static_cast<const T*>(is_hidden ? p.hidden_norm : p.embed_norm);
  if (is_padding || !gain) {
    for (int64_t i = threadIdx.x * int64_t{kVec<T>}; i < size; i += blockDim.x * int64_t{kVec<T>})
      store<T, kAligned>(out, i, size, is_padding ? zeros<T>() : load<T, kAligned>(in, i, size));
    return;
  }
  const auto read = [&](int64_t i) { return load<T, kAligned>(in, i, size); };
  rms_norm_row<T, kAligned>(read, gain, p.eps, out, size);
}

}  // namespace

int draft_input(const DraftInputParams& p, CUstream_st* stream) {
  if (p.num_rows == 0 || p.hidden_size == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const dim3 grid(grid_size(p.num_rows), 2);
      EAGLE3_LAUNCH((draft_input_kernel<T, aligned.value>), grid, norm_threads<T>(p.hidden_size), 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.hidden, p.embed_weight, p.token_embeddings, p.embed_norm, p.hidden_norm, p.x},
                         {p.hidden_size, p.hidden_stride, p.token_embeddings_stride}, launch);
  });
}

}  // namespace eagle3::cuda
