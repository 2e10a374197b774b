// csrc/ops/launch.h for the module _simt: CPU tensors run the emulated CUDA kernels. And the emulator's switches, as
// ops.
#include "../../csrc/ops/launch.h"

#include <torch/library.h>

#include "simt.h"

namespace eagle3 {

const char kNamespace[] = "eagle3_simt";

namespace {

bool reads_values = true;

void set_order(c10::string_view order, int64_t seed) {
  const bool random = order == "random", reverse = order == "reverse";
  TORCH_CHECK_VALUE(random || reverse || order == "forward", "order is \"", order,
                    "\", expected forward, reverse or random");
  simt::set_order(random    ? simt::Order::kRandom
                  : reverse ? simt::Order::kReverse
                            : simt::Order::kForward,
                  static_cast<uint64_t>(seed));
}

void read_values(bool enabled) { reads_values = enabled; }

}  // namespace

bool has_cpu_kernel(const at::Tensor&) { return false; }

bool can_read_values(const at::Tensor&) { return reads_values; }

void check_device(const char*, const at::Tensor&) {}

CUstream_st* current_stream(const at::Tensor&) { return nullptr; }

void check_launch(const char* op, const at::Tensor& tensor, int cuda_error) {
  TORCH_CHECK(cuda_error == cudaSuccess, op, ": ", cudaGetErrorString(static_cast<cudaError_t>(cuda_error)), " on ",
              tensor.device());
}

}  // namespace eagle3

TORCH_LIBRARY_FRAGMENT(eagle3_simt, m) {
  m.def("_set_order(str order, int seed=0) -> ()", eagle3::set_order);
  m.def("_launch_count() -> int", simt::launch_count);
  m.def("_read_values(bool enabled) -> ()", eagle3::read_values);  // False: index checks are skipped, as on a GPU
}
