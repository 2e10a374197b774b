// CUDA's device language for g++: core/device.cuh includes this under EAGLE3_SIMT, and csrc/cuda/*.cu run on the host.
//
// Each CUDA thread is a fiber and blocks run one after the other, so every schedule is repeatable (simt.cpp). Warp
// collectives and barriers are checked more strictly than hardware does: see the errors in simt.cpp. CUDA's own headers
// give the types. -fno-strict-aliasing is needed: kernels read bfloat16 through int4, which nvcc allows.
#pragma once

#include <cuda_runtime_api.h>  // declarations only; the calls that launchers make are defined in simt.cpp
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one at a time, so one copy is enough
#define __constant__ static
#define __launch_bounds__(...)
#define __grid_constant__

namespace simt {

struct Index {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
};
extern const Index* current;  // of the running thread

// A kernel broke a rule of the language. The launch throws it; the process goes on.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// In which order the threads of a block, and the blocks of a grid, take their turns. Random: shuffled from `seed` at
// every turn. A result that depends on it is a missing barrier or an order of summation that hardware does not promise.
enum class Order { kForward, kReverse, kRandom };
void set_order(Order order, uint64_t seed);

struct Where {  // a line of device code, for the messages
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

// A launch that CUDA would refuse is left to cudaGetLastError(), as there.
void launch(const void* kernel, dim3 grid, dim3 block, size_t smem_bytes, const std::function<void()>& body);
int64_t launch_count();  // since the start, refused ones left out

template <class... P, class... A>
void run_kernel(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem_bytes, A&&... arguments) {
  const std::tuple<P...> copies(std::forward<A>(arguments)...);  // once per launch, as CUDA does
  launch(reinterpret_cast<const void*>(kernel), grid, block, smem_bytes, [&] { std::apply(kernel, copies); });
}

void* dynamic_shared();
cudaError_t allow_dynamic_shared(const void* kernel, int bytes);

enum class Vote { kNone, kCount, kAnd, kOr };
int block_barrier(Vote vote, bool predicate, Where where);

// What each lane of a warp brought to a collective.
struct Lanes {
  uint32_t mask;
  const uint64_t* values;  // [32], those in the mask
};
// Waits for every lane named in mask. fence: also orders memory among them; shuffles and votes do not.
Lanes exchange(uint32_t mask, uint64_t value, bool fence, Where where);
unsigned lane();
[[noreturn]] void fail(const std::string& what, Where where);

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(From) <= 8 && std::is_trivially_copyable_v<From> && std::is_trivially_copyable_v<To>);
  To to{};
  std::memcpy(static_cast<void*>(&to), &from, std::min(sizeof to, sizeof from));
  return to;
}

// The value of lane `source`; the lane's own where the source lies outside its segment.
template <class T>
T shuffle(uint32_t mask, T value, int source, bool inside, Where where) {
  const Lanes lanes = exchange(mask, bits<uint64_t>(value), false, where);
  if (!inside) return value;
  if (!(lanes.mask >> source & 1)) fail("a shuffle reads lane " + std::to_string(source) + ", not in its mask", where);
  return bits<T>(lanes.values[source]);
}

// An atomic read-modify-write by a builtin, which TSan understands.
template <class T, class F>
T read_modify_write(T* address, F next) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  Word* word = reinterpret_cast<Word*>(address);
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, bits<Word>(next(bits<T>(old))), false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return bits<T>(old);
}

template <class T>
using Same = std::type_identity_t<T>;  // takes part in no deduction: atomicAdd(float*, 1) adds a float

}  // namespace simt

#define threadIdx (::simt::current->thread)
#define blockIdx (::simt::current->block)
#define blockDim (::simt::current->block_dim)
#define gridDim (::simt::current->grid_dim)
constexpr int warpSize = 32;

// ---- barriers

inline void __syncthreads(simt::Where w = {}) { simt::block_barrier(simt::Vote::kNone, false, w); }
inline int __syncthreads_count(int p, simt::Where w = {}) { return simt::block_barrier(simt::Vote::kCount, p, w); }
inline int __syncthreads_and(int p, simt::Where w = {}) { return simt::block_barrier(simt::Vote::kAnd, p, w); }
inline int __syncthreads_or(int p, simt::Where w = {}) { return simt::block_barrier(simt::Vote::kOr, p, w); }
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Where w = {}) { simt::exchange(mask, 0, true, w); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// ---- warp collectives

template <class T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, simt::Where w = {}) {
  const int segment = static_cast<int>(simt::lane()) & ~(width - 1);
  return simt::shuffle(mask, v, segment | (source & (width - 1)), true, w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int flip, int width = 32, simt::Where w = {}) {
  const int lane = static_cast<int>(simt::lane()), source = lane ^ flip;
  return simt::shuffle(mask, v, source & 31, source <= (lane | (width - 1)), w);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, simt::Where w = {}) {
  const int lane = static_cast<int>(simt::lane()), source = lane + static_cast<int>(delta);
  return simt::shuffle(mask, v, source & 31, source <= (lane | (width - 1)), w);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, simt::Where w = {}) {
  const int lane = static_cast<int>(simt::lane()), source = lane - static_cast<int>(delta);
  return simt::shuffle(mask, v, source & 31, source >= (lane & ~(width - 1)), w);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, simt::Where w = {}) {
  const simt::Lanes lanes = simt::exchange(mask, predicate != 0, false, w);
  uint32_t votes = 0;
  for (int i = 0; i < 32; ++i)
    if (lanes.mask >> i & 1) votes |= static_cast<uint32_t>(lanes.values[i]) << i;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, simt::Where w = {}) {
  return __ballot_sync(mask, predicate, w) != 0;
}
inline int __all_sync(unsigned mask, int predicate, simt::Where w = {}) {
  return __ballot_sync(mask, !predicate, w) == 0;
}

// ---- memory

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, simt::Same<T> v) {
  *p = v;
}
template <class T>
void __stcg(T* p, simt::Same<T> v) {
  *p = v;
}
template <class T>
T atomicAdd(T* p, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T a) { return static_cast<T>(a + v); });
}
template <class T>
T atomicMax(T* p, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T a) { return a > v ? a : v; });
}
template <class T>
T atomicMin(T* p, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T a) { return a < v ? a : v; });
}
template <class T>
T atomicOr(T* p, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T a) { return a | v; });
}
template <class T>
T atomicExch(T* p, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T) { return v; });
}
template <class T>
T atomicCAS(T* p, simt::Same<T> compare, simt::Same<T> v) {
  return simt::read_modify_write(p, [=](T a) { return a == compare ? v : a; });
}

// ---- arithmetic that <cmath> does not have; the approximate forms are exact here

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __int_as_float(int i) { return simt::bits<float>(i); }
inline float __uint_as_float(unsigned i) { return simt::bits<float>(i); }
inline int __float_as_int(float f) { return simt::bits<int>(f); }
inline unsigned __float_as_uint(float f) { return simt::bits<unsigned>(f); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max(T a, T b) {
  return a < b ? b : a;
}

// ---- the overload of cuda_runtime.h that takes a kernel by its name

template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  return simt::allow_dynamic_shared(reinterpret_cast<const void*>(kernel), value);
}
