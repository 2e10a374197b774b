// Row-invariance: output (m, n) is one thread-wise chain of fmaf over k per thread, then fixed sums over lanes and
// warps. Which k a thread takes depends on the dtype alone, never on the number of rows or on how much is unrolled for
// them.
#include <bit>

#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWeightRows = 4;  // per block; each piece of x is used for all of them

// Rows of x per launch. Misaligned tensors pass the weight more often: no model has them, and kernels cost build time.
template <bool kAligned>
constexpr int kMaxTokens = kAligned ? 8 : 2;

// Steps along k that are loaded before the first is used. Few tokens: bytes in flight; many: registers.
template <int kTokens, bool kAligned>
constexpr int kUnroll = kAligned && kTokens <= 2 ? 2 : 1;

// Outputs of a block, rounded up for warp_sums().
template <int kTokens>
constexpr int kSums = std::bit_ceil(static_cast<unsigned>(kWeightRows * kTokens));

template <class T, int kTokens, bool kAligned>
struct Block {
  const T* weight[kWeightRows];
  const T* x[kTokens];
  int64_t k;
  float sum[kWeightRows][kTokens];

  // Adds the products of kSteps pieces, the first at i.
  template <int kSteps>
  __device__ __forceinline__ void add(int64_t i) {
    Vec<T> w[kSteps][kWeightRows], v[kSteps][kTokens];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t at = i + s * kThreads * kVec<T>;
#pragma unroll
      for (int r = 0; r < kWeightRows; ++r) w[s][r] = load<T, kAligned, Cached::kOnce>(weight[r], at, k);
#pragma unroll
      for (int m = 0; m < kTokens; ++m) v[s][m] = load<T, kAligned>(x[m], at, k);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) {
#pragma unroll
        for (int r = 0; r < kWeightRows; ++r) {
#pragma unroll
          for (int m = 0; m < kTokens; ++m)
            sum[r][m] = fmaf(static_cast<float>(w[s][r].lane[e]), static_cast<float>(v[s][m].lane[e]), sum[r][m]);
        }
      }
    }
  }
};

// Weight rows blockIdx.x * kWeightRows and on, against kTokens rows of x.
template <class T, int kTokens, bool kAligned>
__global__ void __launch_bounds__(kThreads) skinny_linear_kernel(const SkinnyLinearParams p) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kWeightRows;
  Block<T, kTokens, kAligned> block;
  block.k = p.k;
#pragma unroll
  for (int r = 0; r < kWeightRows; ++r) {  // past the last row: that row again, and nothing is written
    const int64_t row = first + r < p.n ? first + r : p.n - 1;
    block.weight[r] = static_cast<const T*>(p.weight) + row * p.k;
#pragma unroll
    for (int m = 0; m < kTokens; ++m) block.sum[r][m] = 0.0f;
  }
#pragma unroll
  for (int m = 0; m < kTokens; ++m) block.x[m] = static_cast<const T*>(p.x) + m * p.x_stride;

  constexpr int64_t kStep = kThreads * kVec<T>;
  constexpr int kSteps = kUnroll<kTokens, kAligned>;
  int64_t i = threadIdx.x * kVec<T>;
  for (; i + (kSteps - 1) * kStep < p.k; i += kSteps * kStep) block.template add<kSteps>(i);
  for (; i < p.k; i += kStep) block.template add<1>(i);

  constexpr int kOutputs = kWeightRows * kTokens;
  __shared__ float parts[kThreads / 32][kOutputs];
  float sums[kSums<kTokens>];
#pragma unroll
  for (int o = 0; o < kSums<kTokens>; ++o) sums[o] = o < kOutputs ? block.sum[o / kTokens][o % kTokens] : 0.0f;
  const float sum_of_warp = warp_sums(sums);
  const int output = lane_index() * kSums<kTokens> / 32;
  if (lane_index() % (32 / kSums<kTokens>) == 0 && output < kOutputs) parts[warp_index()][output] = sum_of_warp;
  __syncthreads();
  const int64_t row = first + threadIdx.x / kTokens, m = threadIdx.x % kTokens;
  if (threadIdx.x >= kOutputs || row >= p.n) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += parts[w][threadIdx.x];
  if (p.bias) sum += static_cast<float>(static_cast<const T*>(p.bias)[row]);
  static_cast<T*>(p.y)[m * p.n + row] = T(sum);
}

// Launches the kernel for p.m = kTokens, trying the numbers from kTokens down.
template <class T, bool kAligned, int kTokens = kMaxTokens<kAligned>>
void launch(const SkinnyLinearParams& p, CUstream_st* stream) {
  if constexpr (kTokens > 0) {
    if (p.m != kTokens) return launch<T, kAligned, kTokens - 1>(p, stream);
    const unsigned blocks = grid_size(ceil_div(p.n, kWeightRows));
    EAGLE3_LAUNCH((skinny_linear_kernel<T, kTokens, kAligned>), blocks, kThreads, 0, stream, p);
  }
}

}  // namespace

int skinny_linear(const SkinnyLinearParams& p, CUstream_st* stream) {
  if (p.m == 0 || p.n == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    return for_layout<T>({p.x, p.weight}, {p.k, p.x_stride}, [&](auto aligned) {
      constexpr int64_t kMost = kMaxTokens<aligned.value>;
      for (int64_t m = 0; m < p.m; m += kMost) {
        SkinnyLinearParams part = p;
        part.m = p.m - m < kMost ? p.m - m : kMost;
        part.x = static_cast<const T*>(p.x) + m * p.x_stride;
        part.y = static_cast<T*>(p.y) + m * p.n;
        launch<T, aligned.value>(part, stream);
      }
      return static_cast<int>(cudaGetLastError());
    });
  });
}

}  // namespace eagle3::cuda
