#include "../core/accept.h"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int64_t kThreads = 128;

// One thread per sequence.
template <class Draft, class Target>
__global__ void __launch_bounds__(kThreads) verify_greedy_kernel(const VerifyGreedyParams p) {
  const int64_t b = blockIdx.x * kThreads + threadIdx.x, count = p.num_draft_tokens;
  if (b >= p.batch) return;
  const auto* draft = static_cast<const Draft*>(p.draft_tokens.data) + b * count;
  const auto* target = static_cast<const Target*>(p.target_tokens.data) + b * (count + 1);
  const int64_t accepted = accepted_prefix(draft, target, count);
  p.accept_lengths[b] = accepted + 1;
  p.next_tokens[b] = target[accepted];
}

template <class Draft, class Target>
int launch(const VerifyGreedyParams& p, CUstream_st* stream) {
  const unsigned blocks = grid_size(ceil_div(p.batch, kThreads));
  EAGLE3_LAUNCH((verify_greedy_kernel<Draft, Target>), blocks, kThreads, 0, stream, p);
  return cudaGetLastError();
}

template <class Draft>
int launch(const VerifyGreedyParams& p, CUstream_st* stream) {
  return p.target_tokens.is_int32 ? launch<Draft, int32_t>(p, stream) : launch<Draft, int64_t>(p, stream);
}

}  // namespace

int verify_greedy(const VerifyGreedyParams& p, CUstream_st* stream) {
  if (p.batch == 0) return cudaSuccess;
  return p.draft_tokens.is_int32 ? launch<int32_t>(p, stream) : launch<int64_t>(p, stream);
}

}  // namespace eagle3::cuda
