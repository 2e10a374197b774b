// Flash decoding: the keys of a query row are cut into parts, a block for each, and a second kernel joins the parts.
//
// How a row's keys are cut, and who adds what in which order, depends on how many there are alone: a row's result is
// the same bits whatever else is in the call. Query heads that share a kv head share its loads.
#include <cfloat>

#include "../core/indices.h"
#include "../core/visible_keys.h"
#include "block.cuh"
#include "dispatch.cuh"

namespace eagle3::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kDims = 8;             // of a head, per lane: a key is dotted by head_dim / kDims lanes, a power of two
constexpr int kBatch = 4;            // keys and values that a lane loads before it uses the first
constexpr int kParts = 16;           // most parts of a row
constexpr int kPartKeys = 64;        // parts hold a multiple of this
constexpr int64_t kLaunchRows = 64;  // query rows per launch: bounds the workspace
constexpr float kLowest = -FLT_MAX;  // where maxima start: unlike -inf it can be subtracted from itself

static_assert(kMaxHeadDim == kDims * 32);

// kDims elements of a head; what lies past its end reads as zero.
template <class T>
struct Dims {
  Vec<T> piece[kDims / kVec<T>];

  template <bool kAligned>
  __device__ __forceinline__ void read(const T* head, int dim, int size, bool inside = true) {
#pragma unroll
    for (int j = 0; j < kDims / kVec<T>; ++j) {
      const int at = dim + j * kVec<T>;
      piece[j] = zeros<T>();
      if (inside && at < size) piece[j] = load<T, kAligned>(head, at, size);
    }
  }
  __device__ __forceinline__ float operator[](int e) const {
    return static_cast<float>(piece[e / kVec<T>].lane[e % kVec<T>]);
  }
};

// The keys that a query row sees, none if its sequence claims rows outside the cache. All threads of a block look for
// the row's sequence together.
__device__ __forceinline__ KeySpan find_keys(const DraftAttentionParams& p, int64_t row) {
  __shared__ KeySpan found;
  if (threadIdx.x == 0) found = {0, 0};
  __syncthreads();
  for (int64_t b = threadIdx.x; b < p.batch; b += blockDim.x) {
    const int64_t begin = index_at(p.row_offsets, b), stop = index_at(p.row_offsets, b + 1);
    if (row < begin || row >= stop) continue;
    const int64_t end = stop < p.num_rows ? stop : p.num_rows;
    const KeySpan keys = visible_keys(row, begin, end, index_at(p.cache_starts, b), index_at(p.cache_lengths, b));
    if (keys.start >= 0 && keys.length <= p.num_slots - keys.start) found = keys;
  }
  __syncthreads();
  return found;
}

__device__ __forceinline__ int64_t keys_per_part(int64_t length) {
  return (length + kParts * kPartKeys - 1) / (kParts * kPartKeys) * kPartKeys;
}

// Where a part's result lies in the workspace: the weighted sum of values [head_dim], then the maximum and the sum of
// the weights relative to it.
__device__ __forceinline__ float* part_result(const DraftAttentionParams& p, int64_t launch_row, int64_t head,
                                              int64_t part) {
  const int64_t index = (launch_row * p.num_q_heads + head) * kParts + part;
  return static_cast<float*>(p.workspace) + index * (p.head_dim + 2);
}

// One lane's share of the softmax over its keys, for one query head.
struct Softmax {
  float q[kDims], values[kDims], max, sum;

  template <class T>
  __device__ __forceinline__ void start(const Dims<T>& query) {
#pragma unroll
    for (int e = 0; e < kDims; ++e) {
      q[e] = query[e];
      values[e] = 0.0f;
    }
    max = kLowest;
    sum = 0.0f;
  }
  template <class T>
  __device__ __forceinline__ float dot(const Dims<T>& key) const {
    float score = 0.0f;
#pragma unroll
    for (int e = 0; e < kDims; ++e) score = fmaf(q[e], key[e], score);
    return score;
  }
  // Scores of -inf weigh nothing.
  template <class T>
  __device__ __forceinline__ void add(const float (&score)[kBatch], const Dims<T> (&value)[kBatch]) {
    float highest = max;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) highest = score[j] > highest ? score[j] : highest;
    const float decay = expf(max - highest);
    max = highest;
    sum *= decay;
#pragma unroll
    for (int e = 0; e < kDims; ++e) values[e] *= decay;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float weight = expf(score[j] - highest);
      sum += weight;
#pragma unroll
      for (int e = 0; e < kDims; ++e) values[e] = fmaf(weight, value[j][e], values[e]);
    }
  }
};

// Writes the results of all teams together to result_of(head).
template <int kHeads, class ResultOf>
__device__ __forceinline__ void join_teams(const Softmax (&state)[kHeads], int lanes, int d,
                                           const ResultOf& result_of) {
  __shared__ float values[kHeads][kThreads * kDims], maxima[kHeads][kThreads], sums[kHeads][kThreads];
  const int thread = static_cast<int>(threadIdx.x), teams = kThreads / lanes;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < kDims; ++e) values[h][thread * kDims + e] = state[h].values[e];
    if (thread % lanes != 0) continue;
    maxima[h][thread / lanes] = state[h].max;
    sums[h][thread / lanes] = state[h].sum;
  }
  __syncthreads();
  for (int i = thread; i < kHeads * d; i += kThreads) {
    const int h = i / d, dim = i % d;
    float max = kLowest, sum = 0.0f, value = 0.0f;
    for (int s = 0; s < teams; ++s) max = maxima[h][s] > max ? maxima[h][s] : max;
    for (int s = 0; s < teams; ++s) {
      const float weight = expf(maxima[h][s] - max);
      sum = fmaf(weight, sums[h][s], sum);
      value = fmaf(weight, values[h][s * lanes * kDims + dim], value);
    }
    float* result = result_of(h);
    result[dim] = value;
    if (dim > 0) continue;
    result[d] = max;
    result[d + 1] = sum;
  }
}

// Block (row, group of kHeads query heads, part). Each team of `lanes` lanes takes every `teams`th key of the part.
template <class T, int kHeads, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    attention_parts_kernel(const DraftAttentionParams p, int64_t first_row, int lanes) {
  const int64_t row = first_row + blockIdx.x, first_head = static_cast<int64_t>(blockIdx.y) * kHeads;
  const KeySpan keys = find_keys(p, row);
  const int64_t size = keys_per_part(keys.length), begin = blockIdx.z * size;
  const int64_t end = begin + size < keys.length ? begin + size : keys.length;
  if (begin >= end) return;

  const int d = static_cast<int>(p.head_dim);
  const int team = static_cast<int>(threadIdx.x) / lanes, teams = kThreads / lanes;
  const int dim = static_cast<int>(threadIdx.x) % lanes * kDims;
  Softmax state[kHeads];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    Dims<T> query;
    query.template read<kAligned>(static_cast<const T*>(p.q) + row * p.q_stride + (first_head + h) * d, dim, d);
    state[h].start(query);
  }

  const int64_t kv_head = first_head / (p.num_q_heads / p.num_kv_heads);
  const T* k_cache = static_cast<const T*>(p.k_cache) + keys.start * p.k_stride + kv_head * p.k_head_stride;
  const T* v_cache = static_cast<const T*>(p.v_cache) + keys.start * p.v_stride + kv_head * p.v_head_stride;
  for (int64_t base = begin; base < end; base += teams * kBatch) {
    Dims<T> key[kBatch], value[kBatch];
    bool inside[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int64_t t = base + j * teams + team;
      inside[j] = t < end;
      key[j].template read<kAligned>(k_cache + t * p.k_stride, dim, d, inside[j]);
      value[j].template read<kAligned>(v_cache + t * p.v_stride, dim, d, inside[j]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        score[j] = state[h].dot(key[j]);
        for (int reach = lanes / 2; reach > 0; reach /= 2) score[j] += __shfl_xor_sync(kAllLanes, score[j], reach);
        score[j] = inside[j] ? score[j] * p.scale : -INFINITY;
      }
      state[h].add(score, value);
    }
  }

  join_teams<kHeads>(state, lanes, d, [&](int h) { return part_result(p, blockIdx.x, first_head + h, blockIdx.z); });
}

// Block (row, query head): joins the parts.
template <class T>
__global__ void __launch_bounds__(kThreads) attention_join_kernel(const DraftAttentionParams p, int64_t first_row) {
  const int64_t row = first_row + blockIdx.x, head = blockIdx.y, d = p.head_dim;
  const KeySpan keys = find_keys(p, row);
  const int64_t size = keys_per_part(keys.length);
  const int parts = keys.length > 0 ? static_cast<int>((keys.length + size - 1) / size) : 0;
  T* out = static_cast<T*>(p.out) + (row * p.num_q_heads + head) * d;
  float max = kLowest;
  for (int s = 0; s < parts; ++s) {
    const float other = part_result(p, blockIdx.x, head, s)[d];
    max = other > max ? other : max;
  }
  for (int64_t dim = threadIdx.x; dim < d; dim += kThreads) {
    float sum = 0.0f, value = 0.0f;
    for (int s = 0; s < parts; ++s) {
      const float* result = part_result(p, blockIdx.x, head, s);
      const float weight = expf(result[d] - max);
      sum = fmaf(weight, result[d + 1], sum);
      value = fmaf(weight, result[dim], value);
    }
    out[dim] = parts == 0 ? T(0.0f) : T(value / sum);
  }
}

template <class T, int kHeads, bool kAligned>
int launch(const DraftAttentionParams& p, CUstream_st* stream) {
  int lanes = 1;
  while (lanes * kDims < p.head_dim) lanes *= 2;
  // No row has more parts than its keys could fill, were they the whole cache.
  const int64_t most_parts = p.num_slots < kParts * kPartKeys ? ceil_div(p.num_slots, kPartKeys) : kParts;
  for (int64_t row = 0; row < p.num_rows; row += kLaunchRows) {
    const unsigned rows = grid_size(p.num_rows - row < kLaunchRows ? p.num_rows - row : kLaunchRows);
    const dim3 parts(rows, grid_size(p.num_q_heads / kHeads), grid_size(most_parts));
    const dim3 join(rows, grid_size(p.num_q_heads));
    if (most_parts > 0)
      EAGLE3_LAUNCH((attention_parts_kernel<T, kHeads, kAligned>), parts, kThreads, 0, stream, p, row, lanes);
    EAGLE3_LAUNCH(attention_join_kernel<T>, join, kThreads, 0, stream, p, row);
  }
  return cudaGetLastError();
}

}  // namespace

int64_t draft_attention_workspace(int64_t num_rows, int64_t num_q_heads, int64_t, int64_t head_dim) {
  const int64_t rows = num_rows < kLaunchRows ? num_rows : kLaunchRows;
  return rows * num_q_heads * kParts * (head_dim + 2) * static_cast<int64_t>(sizeof(float));
}

int draft_attention(const DraftAttentionParams& p, CUstream_st* stream) {
  if (p.num_rows == 0 || p.num_q_heads * p.head_dim == 0) return cudaSuccess;
  if (p.head_dim > kMaxHeadDim) return cudaErrorInvalidValue;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto strides = {p.q_stride, p.head_dim, p.k_stride, p.k_head_stride, p.v_stride, p.v_head_stride};
    return for_layout<T>({p.q, p.k_cache, p.v_cache}, strides, [&](auto aligned) {
      if constexpr (aligned.value) {  // misaligned heads are served one by one: no model has them
        const int64_t group = p.num_q_heads / p.num_kv_heads;
        if (group % 4 == 0) return launch<T, 4, true>(p, stream);
        if (group % 2 == 0) return launch<T, 2, true>(p, stream);
      }
      return launch<T, 1, aligned.value>(p, stream);
    });
  });
}

}  // namespace eagle3::cuda
