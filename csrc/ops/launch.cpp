#include "launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#if defined(EAGLE3_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace eagle3 {

const char kNamespace[] = "eagle3_ext";

bool has_cpu_kernel(const at::Tensor& tensor) { return tensor.is_cpu(); }

bool can_read_values(const at::Tensor& tensor) { return tensor.is_cpu(); }

void check_device(const char* op, const at::Tensor& tensor) {
#if defined(EAGLE3_WITH_CUDA)
  TORCH_CHECK_VALUE(tensor.is_cpu() || tensor.is_cuda(), op, ": tensors are on ", tensor.device(),
                    "; there are kernels for the CPU and for CUDA");
#else
  TORCH_CHECK_VALUE(tensor.is_cpu(), op, ": tensors are on ", tensor.device(),
                    ", but this build of eagle3_ext has CPU kernels only");
#endif
}

#if defined(EAGLE3_WITH_CUDA)

CUstream_st* current_stream(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  return static_cast<CUstream_st*>(guard.getStream(tensor.device()).native_handle());
}

void check_launch(const char* op, const at::Tensor& tensor, int cuda_error) {
  const auto error = static_cast<cudaError_t>(cuda_error);
  if (error == cudaSuccess) return;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorUnsupportedPtxVersion) {
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, tensor.device().index());
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, tensor.device().index());
    TORCH_CHECK(false, op, ": ", tensor.device(), " has compute capability ", major, ".", minor,
                ", but this build of eagle3_ext has kernels for ", EAGLE3_CUDA_ARCHITECTURES,
                "; build it with TORCH_CUDA_ARCH_LIST=", major, ".", minor);
  }
  TORCH_CHECK(false, op, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ") on ", tensor.device());
}

#endif

}  // namespace eagle3
