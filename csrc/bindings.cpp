// The Python module `_C`: the native drafter and the CPU level. Ops are not here; they register with the dispatcher.
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "cpu/dispatch.h"
#include "drafter/drafter.h"
#include "ops/linear.h"

namespace py = pybind11;

namespace {

using eagle3::Drafter;
using eagle3::DrafterSizes;

// The drafter's buffers outlive the call, and tensors born in inference mode could not be written outside of it.
struct NormalMode {
  const c10::InferenceMode inference{false};
  const at::NoGradGuard no_grad;  // after it: leaving inference mode turns gradients on
};

using Guards = py::call_guard<py::gil_scoped_release, NormalMode>;

eagle3::FeatureNorm feature_norm(const std::string& name) {
  if (name == "none") return eagle3::FeatureNorm::kNone;
  if (name == "whole") return eagle3::FeatureNorm::kWhole;
  if (name == "per_state") return eagle3::FeatureNorm::kPerState;
  throw py::value_error("feature_norm is '" + name + "'; expected none, whole or per_state");
}

// Reads an eagle3_ext.checkpoint.DrafterConfig, whose fields have these names.
DrafterSizes sizes_of(const py::object& config) {
  const auto integer = [&](const char* name) { return config.attr(name).cast<int64_t>(); };
  const auto boolean = [&](const char* name) { return config.attr(name).cast<bool>(); };
  DrafterSizes sizes{};
  sizes.hidden_size = integer("hidden_size");
  sizes.target_hidden_size = integer("target_hidden_size");
  sizes.num_states = integer("num_states");
  sizes.intermediate_size = integer("intermediate_size");
  sizes.num_q_heads = integer("num_q_heads");
  sizes.num_kv_heads = integer("num_kv_heads");
  sizes.head_dim = integer("head_dim");
  sizes.vocab_size = integer("vocab_size");
  sizes.draft_vocab_size = integer("draft_vocab_size");
  sizes.eps = config.attr("eps").cast<double>();
  sizes.logit_scale = config.attr("logit_scale").cast<double>();
  sizes.attention_scale = config.attr("attention_scale").cast<double>();
  sizes.fused = config.attr("fusion").cast<std::string>() == "fc";
  sizes.feature_norm = feature_norm(config.attr("feature_norm").cast<std::string>());
  sizes.fc_bias = boolean("fc_bias");
  sizes.has_hidden_norm = boolean("has_hidden_norm");
  sizes.has_final_norm = boolean("has_final_norm");
  sizes.norm_before_residual = boolean("norm_before_residual");
  sizes.norm_output = boolean("norm_output");
  sizes.qk_norm = boolean("qk_norm");
  sizes.qkv_bias = boolean("qkv_bias");
  sizes.o_bias = boolean("o_bias");
  sizes.mlp_bias = boolean("mlp_bias");
  for (const py::handle layer : config.attr("layers")) {
    const py::object window = layer.attr("window");
    sizes.layers.push_back({layer.attr("joins_embedding").cast<bool>(), window.is_none() ? 0 : window.cast<int64_t>()});
  }
  if (const py::object mla = config.attr("mla"); !mla.is_none()) {
    const auto width = [&](const char* name) { return mla.attr(name).cast<int64_t>(); };
    const bool has_q_latent = !mla.attr("q_lora_rank").is_none();
    sizes.latent = {has_q_latent ? width("q_lora_rank") : 0, width("kv_lora_rank"), width("nope_head_dim"),
                    width("rope_head_dim"), width("v_head_dim")};
  }
  return sizes;
}

// TORCH_CHECK_VALUE and TORCH_CHECK_INDEX become ValueError and IndexError, a full GPU torch.OutOfMemoryError, without the
// C++ backtrace.
void translate(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const c10::ValueError& value) {
    PyErr_SetString(PyExc_ValueError, value.what_without_backtrace());
  } catch (const c10::IndexError& index) {
    PyErr_SetString(PyExc_IndexError, index.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& memory) {
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), memory.what_without_backtrace());
  } catch (const c10::Error& other) {
    PyErr_SetString(PyExc_RuntimeError, other.what_without_backtrace());
  }
}

void bind(py::module_& m) {
  py::register_local_exception_translator(translate);
  m.def(
      "cpu_level", [] { return std::string(eagle3::cpu::level_name()); },
      "The instruction set the CPU kernels use: plain, avx2, avx512 or avx512_bf16.");

  m.attr("SKINNY_ROWS") = eagle3::kSkinnyRows;

  py::class_<Drafter>(m, "Drafter", py::module_local())
      .def(py::init([](const py::object& config, const eagle3::WeightsByName& weights, int64_t max_batch,
                       int64_t max_length) {
             return std::make_unique<Drafter>(sizes_of(config), weights, max_batch, max_length);
           }),
           py::arg("config"), py::arg("weights"), py::arg("max_batch"), py::arg("max_length"),
           py::call_guard<NormalMode>())
      .def(
          "extend",
          [](Drafter& drafter, at::Tensor features, at::Tensor tokens, at::Tensor positions, at::Tensor row_offsets,
             std::optional<at::Tensor> sequences, std::optional<at::Tensor> token_embeddings) {
            drafter.extend({features, tokens, positions, row_offsets, sequences, token_embeddings});
          },
          Guards())
      .def("claim_draft", &Drafter::claim_draft)
      .def(
          "run_draft",
          [](Drafter& drafter, int64_t num_tokens) {
            eagle3::DraftTokens draft = drafter.run_draft(num_tokens);
            return std::make_tuple(draft.tokens, draft.lengths, draft.log_probs);
          },
          Guards())
      .def_property_readonly("batch", &Drafter::batch)
      .def("reset", &Drafter::reset, Guards())
      .def("truncate", &Drafter::truncate, Guards())
      .def_property_readonly("lengths", py::cpp_function(&Drafter::lengths, Guards()))
      .def_property_readonly("last_s", &Drafter::last_s)
      .def_property_readonly("last_y", &Drafter::last_y)
      .def_property_readonly("last_logits", &Drafter::last_logits);
}

}  // namespace

PYBIND11_MODULE(_C, m) { bind(m); }
// The tests' module of the same object files, where the drafter runs the emulated CUDA kernels.
PYBIND11_MODULE(_simt, m) { bind(m); }
