// Which kernel an op runs, and under which namespace it is registered.
//
// Both are decided when a module is linked, so that op files are compiled once: by launch.cpp for the package, and by
// tests/simt/launch.cpp for _simt, where the same ops and checks stand in eagle3_simt and run emulated CUDA kernels.
// No header of CUDA or of a CUDA build of torch is needed, so the package builds and imports with either torch.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "../kernels.h"

// EAGLE3_IMPL(m) { m.impl("op", function); } registers the function for every device this build has kernels for.
// TORCH_LIBRARY_IMPL would want the namespace as a literal. Numbered, because several op files are compiled as one.
#define EAGLE3_IMPL(m) EAGLE3_NUMBERED_IMPL(C10_UID, m)
#define EAGLE3_NUMBERED_IMPL(number, m)                               \
  static void C10_CONCATENATE(register_op_, number)(torch::Library&); \
  EAGLE3_REGISTRATION(cpu_registration_, number, CPU)                 \
  EAGLE3_CUDA_REGISTRATION(number)                                    \
  static void C10_CONCATENATE(register_op_, number)(torch::Library & m)
#define EAGLE3_REGISTRATION(name, number, key)                                                                \
  static const torch::detail::TorchLibraryInit C10_CONCATENATE(name, number)(                                 \
      torch::Library::IMPL, C10_CONCATENATE(register_op_, number), eagle3::kNamespace, c10::DispatchKey::key, \
      __FILE__, __LINE__);
#if defined(EAGLE3_WITH_CUDA)
#define EAGLE3_CUDA_REGISTRATION(number) EAGLE3_REGISTRATION(cuda_registration_, number, CUDA)
#else
#define EAGLE3_CUDA_REGISTRATION(number)
#endif

namespace eagle3 {

extern const char kNamespace[];

// Whether tensors on this one's device go to the CPU kernels.
bool has_cpu_kernel(const at::Tensor& tensor);

// Whether index values may be read here and now: on a GPU that would wait for its stream.
bool can_read_values(const at::Tensor& tensor);

// Raises ValueError unless this build has kernels for the tensor's device. The dispatcher sees to it for ops.
void check_device(const char* op, const at::Tensor& tensor);

CUstream_st* current_stream(const at::Tensor& tensor);

// Raises unless cuda_error is cudaSuccess, in one sentence that names the op and the reason.
void check_launch(const char* op, const at::Tensor& tensor, int cuda_error);

// Runs a kernel on the device of `tensor`: launch<cpu::silu_mul, cuda::silu_mul>("silu_mul", gate_up, params).
// The kernels are template arguments, so that a build without CUDA links without cuda::silu_mul.
template <auto cpu_kernel, auto cuda_kernel, class Params>
void launch([[maybe_unused]] const char* op, [[maybe_unused]] const at::Tensor& tensor, const Params& params) {
#if defined(EAGLE3_WITH_CUDA)
  if (!has_cpu_kernel(tensor)) {
    const c10::DeviceGuard guard(tensor.device());
    return check_launch(op, tensor, cuda_kernel(params, current_stream(tensor)));
  }
#endif
  cpu_kernel(params);
}

// Raises ValueError for heads that the CUDA attention kernel was not built for; the CPU's takes any.
void check_head_sizes(const char* op, const at::Tensor& tensor, int64_t head_dim, int64_t value_dim);

// Memory for a CUDA kernel that asks for it: bytes_of(sizes...) bytes, or an undefined tensor for a CPU kernel.
template <auto bytes_of, class... Sizes>
at::Tensor workspace([[maybe_unused]] const at::Tensor& like, [[maybe_unused]] Sizes... sizes) {
#if defined(EAGLE3_WITH_CUDA)
  if (!has_cpu_kernel(like)) return at::empty({bytes_of(sizes...)}, like.options().dtype(at::kByte));
#endif
  return {};
}

// The address of a tensor that may be absent: null for an undefined one.
inline void* address_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

}  // namespace eagle3
