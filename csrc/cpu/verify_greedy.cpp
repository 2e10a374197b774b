#include "../core/accept.h"
#include "rows.h"

namespace eagle3::cpu {
namespace {

template <class Draft, class Target>
void verify(const VerifyGreedyParams& p) {
  const int64_t count = p.num_draft_tokens;
  for (int64_t b = 0; b < p.batch; ++b) {
    const auto* draft = static_cast<const Draft*>(p.draft_tokens.data) + b * count;
    const auto* target = static_cast<const Target*>(p.target_tokens.data) + b * (count + 1);
    const int64_t accepted = accepted_prefix(draft, target, count);
    p.accept_lengths[b] = accepted + 1;
    p.next_tokens[b] = target[accepted];
  }
}

template <class Draft>
void verify(const VerifyGreedyParams& p) {
  p.target_tokens.is_int32 ? verify<Draft, int32_t>(p) : verify<Draft, int64_t>(p);
}

}  // namespace

void verify_greedy(const VerifyGreedyParams& p) { p.draft_tokens.is_int32 ? verify<int32_t>(p) : verify<int64_t>(p); }

}  // namespace eagle3::cpu
