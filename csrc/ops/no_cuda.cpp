// In a build without CUDA kernels a CUDA tensor meets one clear sentence, not the dispatcher's list of backends.
#include <torch/library.h>

namespace eagle3 {
namespace {

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": got a CUDA tensor, but this build of eagle3_ext has CPU ",
                              "kernels only; move the tensors to the CPU");
}

}  // namespace
}  // namespace eagle3

TORCH_LIBRARY_IMPL(eagle3_ext, CUDA, m) {
  for (const char* op : {"capture_", "add_rms_norm_", "add_rms_norm_capture_", "gather_concat", "gather_concat.out",
                         "accepted_rows", "draft_input", "head_rms_norm_", "rope_append_", "mla_append_",
                         "draft_attention", "silu_mul", "skinny_linear", "argmax_tokens", "verify_greedy"})
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&eagle3::refuse>());
}
