#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "checks.h"
#include "launch.h"

namespace eagle3 {
namespace {

at::Tensor silu_mul(const at::Tensor& gate_up_) {
  Arg gate_up("silu_mul", "gate_up", gate_up_);
  const int64_t width = gate_up.shape({-1, -1}, "[n, 2i]").readable_rows().size(1);
  TORCH_CHECK_VALUE(width % 2 == 0, "silu_mul: gate_up has width ", width, ", expected an even number: gate, then up");
  at::Tensor out = at::empty({gate_up.size(0), width / 2}, gate_up_.options());
  const SiluMulParams params{
      .dtype = gate_up.dtype(),
      .gate_up = gate_up.data(),
      .out = out.mutable_data_ptr(),
      .num_rows = gate_up.size(0),
      .intermediate_size = width / 2,
      .gate_up_stride = gate_up.row_stride(),
  };
  launch<cpu::silu_mul, cuda::silu_mul>("silu_mul", gate_up_, params);
  return out;
}

}  // namespace
}  // namespace eagle3

EAGLE3_IMPL(m) { m.impl("silu_mul", eagle3::silu_mul); }
