#include "../core/indices.h"
#include "dispatch.cuh"
#include "rope.cuh"

namespace eagle3::cuda {
namespace {

constexpr int64_t kThreads = 256;

// The pieces that one head is cut into: of rotated pairs, then of the dimensions past them; a v head has no pairs.
template <class T>
struct HeadPieces {
  int64_t pairs, rest, whole;
  EAGLE3_HOST_DEVICE explicit HeadPieces(const RopeAppendParams& p)
      : pairs((p.rotary_dim / 2 + kVec<T> - 1) / kVec<T>),
        rest((p.head_dim - p.rotary_dim + kVec<T> - 1) / kVec<T>),
        whole((p.head_dim + kVec<T> - 1) / kVec<T>) {}
  EAGLE3_HOST_DEVICE int64_t most() const { return pairs + rest > whole ? pairs + rest : whole; }
};

// A thread per piece of a row's heads: q, then k, then v.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads) rope_append_kernel(const RopeAppendParams p) {
  const HeadPieces<T> pieces(p);
  const int64_t n = blockIdx.x, item = blockIdx.y * kThreads + threadIdx.x;
  const int64_t head = item / pieces.most(), piece = item % pieces.most();
  const int64_t first_k = p.num_q_heads, first_v = first_k + p.num_kv_heads;
  if (head >= first_v + p.num_kv_heads) return;

  T* x = static_cast<T*>(p.qkv) + n * p.qkv_stride + head * p.head_dim;
  const int64_t slot = index_at(p.slots, n);
  T* cached = nullptr;  // this head's place in the cache
  if (head >= first_k && slot >= 0 && slot < p.num_slots) {
    T* cache = static_cast<T*>(head < first_v ? p.k_cache : p.v_cache);
    const int64_t kv_head = head < first_v ? head - first_k : head - first_v;
    cached = cache + (slot * p.num_kv_heads + kv_head) * p.head_dim;
  }
  if (head < first_v && piece < pieces.pairs) {
    const float* angles = angles_at(p.cos_sin, index_at(p.positions, n), p.max_position, p.rotary_dim);
    const int64_t i = piece * kVec<T>, half = p.rotary_dim / 2;
    Pairs<T, kAligned> pairs;
    pairs.read(x, i, half);
    if (angles) {
      pairs.rotate(angles, i, half);
      pairs.write(x, i, half);
    }
    if (cached) pairs.write(cached, i, half);
    return;
  }
  const int64_t copied_from = head < first_v ? p.rotary_dim : 0, size = p.head_dim - copied_from;
  const int64_t i = (head < first_v ? piece - pieces.pairs : piece) * kVec<T>;
  if (cached && i < size)
    store<T, kAligned>(cached + copied_from, i, size, load<T, kAligned>(x + copied_from, i, size));
}

}  // namespace

int rope_append(const RopeAppendParams& p, CUstream_st* stream) {
  const int64_t heads = p.num_q_heads + 2 * p.num_kv_heads;
  if (p.num_rows == 0 || heads * p.head_dim == 0) return cudaSuccess;
  return for_type(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto launch = [&](auto aligned) {
      const dim3 grid(grid_size(p.num_rows), grid_size(ceil_div(heads * HeadPieces<T>(p).most(), kThreads)));
      EAGLE3_LAUNCH((rope_append_kernel<T, aligned.value>), grid, kThreads, 0, stream, p);
      return static_cast<int>(cudaGetLastError());
    };
    return for_layout<T>({p.qkv, p.cos_sin, p.k_cache, p.v_cache}, {p.qkv_stride, p.head_dim, p.rotary_dim / 2},
                         launch);
  });
}

}  // namespace eagle3::cuda
