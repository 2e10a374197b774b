// The interface between the layers: one Params struct and one launch declaration per op and device.
//
// Raw pointers only, so that kernels never see a tensor header. `csrc/ops/<op>.cpp` checks tensors and fills Params;
// `csrc/drafter/` fills the same Params from its own workspace and skips the checks. Strides and widths count elements,
// never bytes; every last dimension is contiguous. All structs are zero-initialised: a null pointer means "absent".
#pragma once

#include <cstdint>

struct CUstream_st;  // what a cudaStream_t points to

namespace eagle3 {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16 };

constexpr int kMaxStates = 16;  // most hidden states one features row can join

// A view of int32 or int64 indices (positions, rows, lengths), contiguous.
struct Indices {
  const void* data = nullptr;
  bool is_int32 = false;
};

// features[r, slot*H : (slot+1)*H] = round(hidden[r] + residual[r]); a pure copy without residual.
struct CaptureParams {
  DType dtype;
  void* features;  // [rows, >= (slot+1)*H], row stride below
  const void* hidden;
  const void* residual;  // null: copy
  int64_t rows, hidden_size, slot;
  int64_t features_stride, hidden_stride, residual_stride;
};

// residual = round(hidden + residual); hidden = RMS(residual; weight); with features also features[:, slot] = residual.
struct AddRmsNormParams {
  DType dtype;
  void* hidden;
  void* residual;
  const void* weight;  // [H]
  void* features;      // null: no capture
  int64_t rows, hidden_size, slot;
  int64_t hidden_stride, residual_stride, features_stride;
  float eps;
};

// out[m] = [states[0][rows[m]] | ... | states[K-1][rows[m]]]; a row of -1 gives zeros. One norm weight of [K*H] norms
// the whole row, K weights of [H] norm each chunk. Packed features are the case num_states == 1 (or K weights: split by
// the caller into K strided states).
struct GatherConcatParams {
  DType dtype;
  const void* states[kMaxStates];
  int64_t state_strides[kMaxStates];
  int64_t num_states, hidden_size, num_source_rows;
  Indices rows;
  int64_t num_rows;
  const void* norm_weights[kMaxStates];
  int64_t num_norm_weights;  // 0, 1 or num_states
  float eps;
  void* out;
  int64_t out_stride;
};

// accept_lengths [B] -> rows int64 [B*width] into a [B*width, ...] buffer and row_offsets int64 [B+1].
// packed: rows of accepted tokens in order, then -1; row_offsets = exclusive cumulative accept lengths.
// block_front: rows[b*width+i] = b*width+i for i < accept_lengths[b], else -1; row_offsets[b] = b*width.
struct AcceptedRowsParams {
  Indices accept_lengths;
  int64_t batch, width;
  bool block_front;
  int64_t* rows;
  int64_t* row_offsets;
};

// x[n] = [RMS(E[token]; embed_norm) | RMS(hidden; hidden_norm)]; the right half is hidden itself without hidden_norm.
// token -1 is padding: its row is zeros. token_embeddings replaces the lookup.
struct DraftInputParams {
  DType dtype;
  Indices tokens;
  const void* hidden;            // [n, h]
  const void* embed_weight;      // [V, h], null with token_embeddings
  const void* token_embeddings;  // [n, h] or null
  const void* embed_norm;        // [h]
  const void* hidden_norm;       // [h] or null
  float eps;
  int64_t num_rows, hidden_size, vocab_size;
  int64_t hidden_stride, token_embeddings_stride;
  void* x;  // [n, 2h] contiguous
};

// RMSNorm over each q head (gain q_weight) and each k head (k_weight) of qkv [n, (nq + 2*nkv) * d], in place.
struct HeadRmsNormParams {
  DType dtype;
  void* qkv;
  int64_t qkv_stride;
  const void* q_weight;  // [d]
  const void* k_weight;
  float eps;
  int64_t num_rows, num_q_heads, num_kv_heads, head_dim;
};

// Rotates q (in place) and k of qkv [n, (nq + 2*nkv) * d] at positions, rounds once, and appends k, v to the cache rows
// `slots` (-1 writes nothing). cos_sin fp32 [max_position, rotary_dim]: cos in the first half, sin in the second;
// rotate_half pairing (i, i + rotary_dim/2); dimensions past rotary_dim pass through.
struct RopeAppendParams {
  DType dtype;
  void* qkv;
  int64_t qkv_stride;
  Indices positions, slots;
  const float* cos_sin;
  int64_t num_rows, num_q_heads, num_kv_heads, head_dim, rotary_dim, max_position;
  void* k_cache;  // [num_slots, nkv, d] contiguous
  void* v_cache;
  int64_t num_slots;
};

// Latent attention: rotates the heads of q_pe in place at positions, and writes the cache rows `slots` (-1: nothing) as
// [RMS(kv[:, :latent_dim]; kv_weight) | kv[:, latent_dim:] rotated]. cos_sin fp32 [max_position, rope_dim], as above.
struct MlaAppendParams {
  DType dtype;
  void* q_pe;  // [n, num_heads, rope_dim], any strides between rows and between heads
  int64_t q_stride, q_head_stride;
  const void* kv;  // [n, latent_dim + rope_dim], row stride below
  int64_t kv_stride;
  const void* kv_weight;  // [latent_dim]
  float eps;
  Indices positions, slots;
  const float* cos_sin;
  int64_t num_rows, num_heads, latent_dim, rope_dim, max_position;
  void* cache;  // [num_slots, latent_dim + rope_dim] contiguous
  int64_t num_slots;
};

// Causal GQA of few queries against the cache. Sequence b owns query rows row_offsets[b] .. row_offsets[b+1] and cache
// rows cache_starts[b] .. + cache_lengths[b], its own rows included and last. Row j of m attends to the first
// cache_lengths[b] - m + j + 1 rows, to the last `window` of them if there is a window. Rows past row_offsets[B] are
// padding: zeros. fp32 accumulation.
struct DraftAttentionParams {
  DType dtype;
  const void* q;  // [n, nq, head_dim], row stride below
  int64_t q_stride;
  const void* k_cache;  // [num_slots, nkv, head_dim], any strides between slots and between heads
  const void* v_cache;  // [num_slots, nkv, value_dim]; may lie in k_cache, as MLA's latents do
  int64_t k_stride, k_head_stride, v_stride, v_head_stride;
  Indices row_offsets, cache_starts, cache_lengths;
  int64_t batch, num_rows, num_q_heads, num_kv_heads, head_dim, value_dim;
  int64_t window;  // 0: none
  float scale;
  void* out;          // [n, nq*value_dim] contiguous
  int64_t num_slots;  // CUDA: rows of the cache; a sequence that claims rows outside it gets zeros
  void* workspace;    // CUDA: cuda::draft_attention_workspace(...) bytes
};

// out = silu(gate_up[:, :i]) * gate_up[:, i:], computed in fp32, silu rounded to the dtype before the product (as eager).
struct SiluMulParams {
  DType dtype;
  const void* gate_up;  // [n, 2i]
  void* out;            // [n, i] contiguous
  int64_t num_rows, intermediate_size, gate_up_stride;
};

// y = x W^T (+ bias), fp32 accumulation, rounded once. Row-invariant: row m of y depends on row m of x alone, bit for
// bit, whatever the number of rows or threads.
struct SkinnyLinearParams {
  DType dtype;
  const void* x;       // [m, k], row stride below
  const void* weight;  // [n, k] contiguous
  const void* bias;    // [n] or null
  void* y;             // [m, n] contiguous
  int64_t m, n, k, x_stride;
};

// tokens[r] = target_ids[argmax(logits[r])]; NaN counts as -inf, ties go to the lowest index, a row whose best is -inf
// gives draft index 0 and valid = false. log_probs: log softmax at the winner (NaN excluded), fp32.
struct ArgmaxTokensParams {
  DType dtype;
  const void* logits;  // [n, Vd]
  int64_t num_rows, vocab_size, logits_stride;
  const int64_t* target_ids;  // [Vd] or null: identity
  int64_t* tokens;
  bool* valid;
  float* log_probs;  // null: not asked
  void* workspace;   // CUDA: cuda::argmax_tokens_workspace(...) bytes
};

// accept_lengths[b] = 1 + length of the longest prefix with draft[b, i] == target[b, i] (draft -1 never matches);
// next_tokens[b] = target[b, accept_lengths[b] - 1].
struct VerifyGreedyParams {
  Indices draft_tokens, target_tokens;  // [B, D], [B, D+1]
  int64_t batch, num_draft_tokens;
  int64_t* accept_lengths;
  int64_t* next_tokens;
};

// ---- the drafter's bookkeeping between its layers; no ops. The rules are those of core/drafter_rows.h.

// What the drafter knows of its sequences, on its device. Sequence s of max_batch owns cache rows s * capacity ..
struct DrafterState {
  int64_t* lengths;    // [max_batch] committed rows
  int64_t* extended;   // [B] the sequences of the last extend in its order; -1: it brought no rows
  int64_t* positions;  // [B] of the last extended row
  int64_t max_batch, capacity, max_position;
};

// A chunk of an extend: rows first_row .. + num_rows of those that row_offsets [B+1] shares out among sequences [B].
struct ExtendRowsParams {
  DrafterState state;
  Indices row_offsets, sequences;  // sequences absent: 0 .. B-1
  int64_t batch, first_row, num_rows;
  int64_t* slots;          // [num_rows]; -1 for padding, and for rows past the capacity
  int64_t* chunk_offsets;  // [B+1] the chunk's share of row_offsets
  int64_t* cache_starts;   // [B]
  int64_t* cache_lengths;  // [B] up to the chunk's last row
  int64_t* last_rows;      // [B] the row of the chunk that ends the sequence's share, -1: another chunk has it
};

// Keeps the s and y of last_rows to draft from, and commits the rows of the sequences that end in the chunk.
struct KeepRowsParams {
  DType dtype;
  DrafterState state;
  Indices row_offsets, positions;  // positions [num_rows] of the chunk
  const int64_t* last_rows;
  int64_t batch, hidden_size, s_stride, y_stride;
  const void* s;  // [num_rows, h]
  const void* y;
  void* kept_s;  // [B, h] contiguous
  void* kept_y;
};

// After the head of draft step `step`: its tokens, and the rows that the next step feeds on.
struct DraftRowsParams {
  DrafterState state;
  int64_t batch, step, num_tokens;  // num_tokens: D
  const int64_t* chosen;            // [B] what argmax_tokens gave
  const bool* valid;
  const float* chosen_log_probs;
  int64_t* draft_tokens;   // [B, D]
  int64_t* draft_lengths;  // [B]
  float* log_probs;        // [B, D]
  int64_t *tokens, *positions, *slots, *cache_starts, *cache_lengths;  // [B] of the next step
};

namespace cpu {
void capture(const CaptureParams&);
void add_rms_norm(const AddRmsNormParams&);  // add_rms_norm_ and add_rms_norm_capture_
void gather_concat(const GatherConcatParams&);
void accepted_rows(const AcceptedRowsParams&);
void draft_input(const DraftInputParams&);
void head_rms_norm(const HeadRmsNormParams&);
void rope_append(const RopeAppendParams&);
void mla_append(const MlaAppendParams&);
void draft_attention(const DraftAttentionParams&);
void silu_mul(const SiluMulParams&);
void skinny_linear(const SkinnyLinearParams&);
void argmax_tokens(const ArgmaxTokensParams&);
void verify_greedy(const VerifyGreedyParams&);
void extend_rows(const ExtendRowsParams&);
void keep_rows(const KeepRowsParams&);
void draft_rows(const DraftRowsParams&);
}  // namespace cpu

// Each enqueues on `stream` and returns a cudaError_t, without synchronising or allocating: cudaErrorInvalidValue for
// sizes it was not built for, else what the launch answered. Indices are read on the device; bad ones are never followed.
namespace cuda {
int capture(const CaptureParams&, CUstream_st* stream);
int add_rms_norm(const AddRmsNormParams&, CUstream_st* stream);
int gather_concat(const GatherConcatParams&, CUstream_st* stream);
int accepted_rows(const AcceptedRowsParams&, CUstream_st* stream);
int draft_input(const DraftInputParams&, CUstream_st* stream);
int head_rms_norm(const HeadRmsNormParams&, CUstream_st* stream);
int rope_append(const RopeAppendParams&, CUstream_st* stream);
int mla_append(const MlaAppendParams&, CUstream_st* stream);
int draft_attention(const DraftAttentionParams&, CUstream_st* stream);  // dims up to kMaxHeadDim and kMaxValueDim
int silu_mul(const SiluMulParams&, CUstream_st* stream);
int skinny_linear(const SkinnyLinearParams&, CUstream_st* stream);
int argmax_tokens(const ArgmaxTokensParams&, CUstream_st* stream);
int verify_greedy(const VerifyGreedyParams&, CUstream_st* stream);
int extend_rows(const ExtendRowsParams&, CUstream_st* stream);
int keep_rows(const KeepRowsParams&, CUstream_st* stream);
int draft_rows(const DraftRowsParams&, CUstream_st* stream);

constexpr int kMaxHeadDim = 768;
constexpr int kMaxValueDim = 512;

// Bytes of workspace, 16-byte aligned, that a call of these sizes needs; 0: none. Depends on nothing but the sizes.
int64_t draft_attention_workspace(int64_t num_rows, int64_t num_q_heads, int64_t head_dim, int64_t value_dim);
int64_t argmax_tokens_workspace(int64_t num_rows, int64_t vocab_size);
}  // namespace cuda

}  // namespace eagle3
