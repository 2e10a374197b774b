// Small kernels with one fault each, and the same without it. test_sanitizers.py expects every fault to be caught, and
// nothing else: the proof that the emulator and the sanitizers look where they should. Run as `faults NAME [right]`.
#include <cstdio>
#include <cstring>
#include <memory>

#include "../../csrc/core/device.cuh"

namespace {

constexpr int kThreads = 64;

// Every thread passes its value to the thread 32 further on, in the other warp.
__global__ void missing_barrier(const float* in, float* out, bool right) {
  __shared__ float passed[kThreads];
  passed[threadIdx.x] = in[threadIdx.x];
  if (right) __syncthreads();
  out[threadIdx.x] = passed[(threadIdx.x + 32) % kThreads];
}

// The same inside a warp, which older hardware ran in lock step.
__global__ void missing_syncwarp(const float* in, float* out, bool right) {
  __shared__ float passed[kThreads];
  passed[threadIdx.x] = in[threadIdx.x];
  if (right) __syncwarp();
  out[threadIdx.x] = passed[threadIdx.x ^ 1];
}

__global__ void global_out_of_bounds(const float* in, float* out, bool right) {
  out[threadIdx.x] = __ldg(in + threadIdx.x + !right);
}

__global__ void vector_out_of_bounds(const float* in, float* out, bool right) {
  out[threadIdx.x] = reinterpret_cast<const float4*>(in)[right ? 0 : kThreads / 4].x;
}

__global__ void dynamic_shared_out_of_bounds(const float* in, float* out, bool right) {
  EAGLE3_DYNAMIC_SHARED(float, passed);
  passed[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = passed[threadIdx.x + !right];
}

__global__ void static_shared_out_of_bounds(const float* in, float* out, bool right) {
  __shared__ float passed[kThreads];
  passed[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = passed[threadIdx.x + !right];
}

__global__ void misaligned_vector(const float* in, float* out, bool right) {
  out[threadIdx.x] = reinterpret_cast<const float4*>(in + !right)->x;
}

__global__ void divergent_barrier(const float* in, float* out, bool right) {
  if (right) {
    __syncthreads();
  } else if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void barrier_after_return(const float* in, float* out, bool right) {
  if (!right && threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void shuffle_without_a_named_lane(const float* in, float* out, bool right) {
  float v = in[threadIdx.x];
  if (right || threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
  out[threadIdx.x] = v;
}

__global__ void shuffle_outside_its_mask(const float* in, float* out, bool right) {
  float v = in[threadIdx.x];
  if (threadIdx.x % 32 < 16) v = __shfl_sync(0x0000ffffu, v, right ? 3 : 20);
  out[threadIdx.x] = v;
}

// Reads what no thread wrote: 0xff bytes, which are NaN.
__global__ void unwritten_dynamic_shared(const float* in, float* out, bool right) {
  EAGLE3_DYNAMIC_SHARED(float, passed);
  if (right) passed[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = passed[threadIdx.x];
}

// The result is that of whichever block comes last.
__global__ void depends_on_block_order(const float* in, float* out, bool right) {
  out[threadIdx.x] = right ? in[threadIdx.x] : in[blockIdx.x];
}

const struct {
  const char* name;
  void (*kernel)(const float*, float*, bool);
} kFaults[] = {
#define FAULT(name) {#name, name}
    FAULT(missing_barrier),
    FAULT(missing_syncwarp),
    FAULT(global_out_of_bounds),
    FAULT(vector_out_of_bounds),
    FAULT(dynamic_shared_out_of_bounds),
    FAULT(static_shared_out_of_bounds),
    FAULT(misaligned_vector),
    FAULT(divergent_barrier),
    FAULT(barrier_after_return),
    FAULT(shuffle_without_a_named_lane),
    FAULT(shuffle_outside_its_mask),
    FAULT(unwritten_dynamic_shared),
    FAULT(depends_on_block_order),
#undef FAULT
};

// One run of two blocks; the sum of the results, each times its place.
double run(void (*kernel)(const float*, float*, bool), bool right) {
  const std::unique_ptr<float[]> in(new float[kThreads]), out(new float[kThreads]());
  for (int i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i + 1);
  EAGLE3_LAUNCH(kernel, 2, kThreads, kThreads * sizeof(float), nullptr, in.get(), out.get(), right);
  double sum = 0;
  for (int i = 0; i < kThreads; ++i) sum += (i + 1) * static_cast<double>(out[i]);
  return sum;
}

}  // namespace

// Exit code 1 and a line on stderr for a fault that the emulator or the three orders caught.
int main(int argc, char** argv) {
  const bool right = argc > 2 && std::strcmp(argv[2], "right") == 0;
  for (const auto& fault : kFaults) {
    if (argc < 2 || std::strcmp(argv[1], fault.name) != 0) continue;
    try {
      simt::set_order(simt::Order::kForward, 0);
      const double forward = run(fault.kernel, right);
      simt::set_order(simt::Order::kReverse, 0);
      const double reverse = run(fault.kernel, right);
      simt::set_order(simt::Order::kRandom, 7);
      const double random = run(fault.kernel, right);
      if (forward == reverse && forward == random) return 0;  // false for NaN
      std::fprintf(stderr, "results %g, %g and %g in three orders\n", forward, reverse, random);
    } catch (const simt::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
  }
  std::fprintf(stderr, "no fault of that name\n");
  return 2;
}
