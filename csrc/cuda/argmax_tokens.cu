#include <cmath>

#include "../core/argmax.h"
#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPieces = 4;  // loads in flight per thread

// Logits per block: of a row's length alone, so that the sums of a row do not depend on the number of rows.
template <class T>
constexpr int64_t kBlockLogits = kThreads * kPieces * kVec<T>;

// What a block found in its part of a row.
struct Partial {
  Candidate best;
  float sum_exp;  // of exp(logit - best.value), NaN left out
};

__device__ __forceinline__ Candidate better(Candidate a, Candidate b) { return beats(b, a) ? b : a; }

__device__ __forceinline__ Candidate no_candidate() { return {-INFINITY, INT64_MAX}; }

__device__ __forceinline__ Candidate warp_best(Candidate best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    best =
        better(best, {__shfl_xor_sync(kAllLanes, best.value, offset), __shfl_xor_sync(kAllLanes, best.index, offset)});
  }
  return best;
}

__device__ __forceinline__ Candidate block_best(Candidate best) {
  __shared__ Candidate parts[kMaxWarps];
  best = warp_best(best);
  if (lane_index() == 0) parts[warp_index()] = best;
  __syncthreads();
  best = parts[0];
  for (int w = 1; w < num_warps(); ++w) best = better(best, parts[w]);
  return best;
}

// exp(value - best), 0 under a best of -inf, whose difference to itself is no number.
__device__ __forceinline__ float exp_below(float value, float best) {
  return best == -INFINITY ? 0.0f : expf(value - best);
}

// Block (row, part).
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) argmax_parts_kernel(const ArgmaxTokensParams p) {
  const int64_t row = blockIdx.x, size = p.vocab_size;
  const T* logits = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const int64_t first = blockIdx.y * kBlockLogits<T> + threadIdx.x * kVec<T>;
  Vec<T> piece[kPieces];
#pragma unroll
  for (int u = 0; u < kPieces; ++u) {
    const int64_t i = first + u * kThreads * kVec<T>;
    if (i < size) piece[u] = load<T, kAligned>(logits, i, size);
  }
  const auto for_each = [&](auto body) {
#pragma unroll
    for (int u = 0; u < kPieces; ++u) {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
        const int64_t i = first + u * kThreads * kVec<T> + e;
        if (i < size) body(static_cast<float>(piece[u].lane[e]), i);
      }
    }
  };

  Candidate best = no_candidate();
  for_each([&](float value, int64_t i) { best = better(best, {argmax_key(value), i}); });
  best = block_best(best);
  float sum = 0.0f;
  if (p.log_probs) {
    for_each([&](float value, int64_t) { sum += value == value ? exp_below(value, best.value) : 0.0f; });
    sum = block_sum(sum);
  }
  if (threadIdx.x == 0) static_cast<Partial*>(p.workspace)[row * gridDim.y + blockIdx.y] = {best, sum};
}

// One warp per row.
__global__ void __launch_bounds__(32) argmax_rows_kernel(const ArgmaxTokensParams p, int64_t parts) {
  const int64_t row = blockIdx.x;
  const Partial* partials = static_cast<const Partial*>(p.workspace) + row * parts;
  Candidate best = no_candidate();
  for (int64_t i = threadIdx.x; i < parts; i += 32) best = better(best, partials[i].best);
  best = warp_best(best);
  float sum = 0.0f;
  if (p.log_probs) {
    for (int64_t i = threadIdx.x; i < parts; i += 32)
      sum += partials[i].sum_exp * exp_below(partials[i].best.value, best.value);
    sum = warp_sum(sum);
  }
  if (threadIdx.x != 0) return;
  p.tokens[row] = p.target_ids ? p.target_ids[best.index] : best.index;
  p.valid[row] = is_winner(best);
  // Without a winner there is no distribution: NaN, as log_softmax gives.
  if (p.log_probs) p.log_probs[row] = is_winner(best) ? -logf(sum) : NAN;
}

template <class T, bool kAligned>
int launch(const ArgmaxTokensParams& p, CUstream_st* stream) {
  const int64_t parts = ceil_div(p.vocab_size, kBlockLogits<T>);
  const dim3 grid(grid_size(p.num_rows), grid_size(parts));
  EAGLE3_LAUNCH((argmax_parts_kernel<T, kAligned>), grid, kThreads, 0, stream, p);
  EAGLE3_LAUNCH(argmax_rows_kernel, grid_size(p.num_rows), 32, 0, stream, p, parts);
  return cudaGetLastError();
}

}  // namespace

int64_t argmax_tokens_workspace(int64_t num_rows, int64_t vocab_size) {
  const int64_t most_parts = ceil_div(vocab_size, kBlockLogits<float>);
  return num_rows * most_parts * static_cast<int64_t>(sizeof(Partial));
}

int argmax_tokens(const ArgmaxTokensParams& p, CUstream_st* stream) {
  if (p.num_rows == 0) return cudaSuccess;
  if (p.vocab_size == 0) return cudaErrorInvalidValue;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    return for_layout<T>({p.logits}, {p.vocab_size, p.logits_stride},
                         [&](auto aligned) { return launch<T, aligned.value>(p, stream); });
  });
}

}  // namespace eagle3::cuda
