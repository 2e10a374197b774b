#include "dispatch.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace eagle3::cpu {
namespace {

struct Level {
  const VectorKernels* table;
  bool supported;
};

// From the plainest to the fastest.
std::vector<Level> levels() {
  std::vector<Level> all = {{&plain::table, true}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  all.push_back({&avx2::table, has_avx2});
  all.push_back({&avx512::table, has_avx512});
  all.push_back({&avx512_bf16::table, has_avx512 && __builtin_cpu_supports("avx512bf16")});
#endif
  return all;
}

const VectorKernels& choose() {
  const char* wanted = std::getenv("EAGLE3_CPU");
  const VectorKernels* best = nullptr;
  std::string supported;
  bool known = false;
  for (const auto& level : levels()) {
    const bool named = wanted && *wanted && std::string(wanted) == level.table->name;
    known |= named;
    if (!level.supported) continue;
    if (named) return *level.table;
    best = level.table;
    supported += (supported.empty() ? "" : ", ") + std::string(level.table->name);
  }
  TORCH_CHECK_VALUE(!wanted || !*wanted, "EAGLE3_CPU=", wanted,
                    known ? ": this CPU lacks that level" : " is no CPU level", "; this CPU runs ", supported);
  return *best;
}

}  // namespace

const VectorKernels& vector_kernels() {
  static const VectorKernels& chosen = choose();
  return chosen;
}

const char* level_name() { return vector_kernels().name; }

}  // namespace eagle3::cpu
