#include "linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

// Whether ATen multiplies matrices of this type with the processor's own instructions. Where it does not, its GEMM
// widens element by element and is 10 times slower than the same product in fp32.
bool has_native_gemm(at::ScalarType type) {
  if (type == at::kFloat) return true;
#if defined(__x86_64__)
  if (type == at::kBFloat16) return __builtin_cpu_supports("avx512bf16");
  unsigned eax, ebx, ecx, edx;  // GCC 11 does not know the name "avx512fp16"
  return __builtin_cpu_supports("avx512f") && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx >> 23 & 1);
#else
  return false;
#endif
}

void skinny(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& y) {
  SkinnyLinearParams p{};
  p.dtype = Arg("linear", "x", x).dtype();
  p.x = x.const_data_ptr();
  p.weight = weight.const_data_ptr();
  p.bias = bias ? bias->const_data_ptr() : nullptr;
  p.y = y.mutable_data_ptr();
  p.m = x.size(0);
  p.n = weight.size(0);
  p.k = x.size(1);
  p.x_stride = x.stride(0);
  launch<cpu::skinny_linear, cuda::skinny_linear>("skinny_linear", x, p);
}

// In fp32, a slice of the weight at a time, so that the widened weight never exists as a whole.
void widened(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& y) {
  constexpr int64_t kSliceElements = int64_t{1} << 22;
  const int64_t n = weight.size(0);
  const int64_t step = std::clamp<int64_t>(kSliceElements / std::max<int64_t>(1, weight.size(1)), 64, 1024);
  const at::Tensor wide_x = x.to(at::kFloat);
  for (int64_t begin = 0; begin < n; begin += step) {
    const int64_t count = std::min(step, n - begin);
    at::Tensor part = at::mm(wide_x, weight.narrow(0, begin, count).to(at::kFloat).t());
    if (bias) part.add_(bias->narrow(0, begin, count));
    y.narrow(1, begin, count).copy_(part);
  }
}

}  // namespace

void linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& y) {
  if (y.numel() == 0) return;
  const bool native_gemm = !has_cpu_kernel(x) || has_native_gemm(x.scalar_type());
  if (x.size(0) <= (native_gemm ? kSkinnyRows : kSkinnyRowsWithoutGemm)) {
    skinny(x, weight, bias, y);
  } else if (native_gemm) {
    at::linear_out(y, x, weight, bias);
  } else {
    widened(x, weight, bias, y);
  }
}

}  // namespace eagle3
