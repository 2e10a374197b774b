"""Files made to hurt: refused by name, before memory is taken and without running anything they carry."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from families import FORMATS, make_weights, variant, write
from safetensors.torch import load_file, save_file

from eagle3_ext.checkpoint import load_checkpoint
from eagle3_ext.checkpoint.names import canonical_name
from eagle3_ext.errors import CheckpointError
from eagle3_ext.rope import rope_table

HUGE = 2**40


@pytest.fixture
def drafter(tmp_path) -> Path:
    return write(tmp_path / "drafter", FORMATS["SpecForge"], variant("plain"), make_weights(variant("plain")))


@pytest.fixture(autouse=True)
def no_memory_to_spare():
    """Every test here may grow by 512 MiB of address space: a claim of a terabyte that is believed fails loudly."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**29, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(folder)
    for part in parts:
        assert part in str(error.value)


def write_header(file: Path, header: dict | bytes, *, length: int | None = None, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


# ---- safetensors


@pytest.mark.parametrize("shape", [[HUGE], [2**20, 2**20], [2**40, 2**40]])
def test_a_tensor_of_a_terabyte_that_is_not_there(drafter, shape):
    elements = 1
    for size in shape:
        elements *= size
    header = {"fc.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 2 * elements]}}
    write_header(drafter / "model.safetensors", header, data=bytes(64))
    refused(drafter, "model.safetensors is no safetensors file")


def test_a_shape_larger_than_its_bytes(drafter):
    header = {"fc.weight": {"dtype": "BF16", "shape": [2**20, 2**20], "data_offsets": [0, 64]}}
    write_header(drafter / "model.safetensors", header, data=bytes(64))
    refused(drafter, "model.safetensors is no safetensors file")


@pytest.mark.parametrize("length", [10**6, HUGE, 2**63, 2**64 - 1])
def test_a_header_longer_than_its_file(drafter, length):
    write_header(drafter / "model.safetensors", {}, length=length)
    refused(drafter, "model.safetensors is no safetensors file")


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b'{"a": 1}', b"\xff" * 40, b'{"a":' * 2000])
def test_a_header_that_is_none(drafter, header):
    write_header(drafter / "model.safetensors", header)
    refused(drafter, "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_git_lfs_pointer(drafter, name):
    (drafter / "model.safetensors").unlink()
    (drafter / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    refused(drafter, f"{name} is a git-lfs pointer", "`git lfs pull`")


def test_overlapping_tensors(drafter):
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    write_header(drafter / "model.safetensors", {"a": entry, "b": entry}, data=bytes(16))
    refused(drafter, "model.safetensors is no safetensors file")


# ---- shard indices


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/passwd", "sub/../../outside.safetensors", "..", "",
                                   "sub/model.safetensors", None, 3])
def test_an_index_that_points_outside_its_folder(drafter, place):
    (drafter.parent / "outside.safetensors").write_bytes((drafter / "model.safetensors").read_bytes())
    (drafter / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"embed_tokens.weight": place}}))
    refused(drafter, "outside its folder", "embed_tokens.weight", repr(place))


@pytest.mark.parametrize("index, told", [
    ("", "is not JSON"), ("[" * 5000, "nested too deeply"), ("[]", "is no index of shards"),
    ("{}", "is no index of shards"), ('{"weight_map": 3}', "is no index of shards"),
    ('{"weight_map": ["a"]}', "is no index of shards"), ("null", "is no index of shards"),
])
def test_an_index_that_is_none(drafter, index, told):
    (drafter / "model.safetensors.index.json").write_text(index)
    refused(drafter, "model.safetensors.index.json", told)


def test_an_index_naming_a_missing_shard(drafter):
    (drafter / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    refused(drafter, "shards that are not there: b.safetensors")


# ---- pickles


class Touch:
    """A pickle that would create a file when opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (str(self.path),)


def as_bin(folder: Path, payload: object) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save(payload, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_with_code_is_not_run(drafter):
    trap = drafter.parent / "trap"
    as_bin(drafter, {"fc.weight": torch.zeros(4), "code": Touch(trap)})
    refused(drafter, "does not load as weights only (Trying to load unsupported GLOBAL posix.mknod")
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(drafter)
    assert "weights_only" not in str(error.value), "torch's advice to set it to False would spring the trap"
    assert not trap.exists()
    torch.load(drafter / "pytorch_model.bin", weights_only=False)
    assert trap.exists(), "the trap works"


class Stranger:
    """No tensor, from a module that torch does not block but does not know either."""


def test_a_class_that_is_no_tensor_is_named_without_advice(drafter):
    as_bin(drafter, {"fc.weight": torch.zeros(4), "other": Stranger()})
    with pytest.raises(CheckpointError, match="Unsupported global: GLOBAL .*Stranger") as error:
        load_checkpoint(drafter)
    assert "Please" not in str(error.value) and "weights_only" not in str(error.value)


def test_a_bare_pickle_is_not_opened(drafter):
    trap = drafter.parent / "trap"
    (drafter / "model.safetensors").unlink()
    (drafter / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(trap)))
    refused(drafter, "no zip archive")
    assert not trap.exists()


@pytest.mark.parametrize("payload, told", [
    ([torch.zeros(2)], "holds a list"),
    ({"fc.weight": torch.zeros(2), "epoch": 3}, "'epoch' is a int"),
    ({3: torch.zeros(2)}, "3 is a Tensor"),
])
def test_a_bin_that_holds_more_than_tensors(drafter, payload, told):
    refused(as_bin(drafter, payload), told)


def test_a_view_of_a_terabyte_over_one_element(drafter):
    refused(as_bin(drafter, {"fc.weight": torch.zeros(1).expand(2**20, 2**20)}), "fc.weight claims", str(HUGE))


def test_a_storage_that_claims_a_terabyte(drafter):
    """The pickle inside the archive names a storage of 2^40 elements; the archive holds four."""
    as_bin(drafter, {"fc.weight": torch.zeros(4)})
    path = drafter / "pytorch_model.bin"
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = next(name for name in entries if name.endswith("data.pkl"))
    assert entries[name].count(b"K\x04") == 2, "the storage's size and the tensor's"
    entries[name] = entries[name].replace(b"K\x04", b"\x8a\x06" + HUGE.to_bytes(6, "little"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    refused(drafter, "pytorch_model.bin")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), bytes(100)])
def test_a_bin_that_is_none(drafter, data):
    (drafter / "model.safetensors").unlink()
    (drafter / "pytorch_model.bin").write_bytes(data)
    refused(drafter, "pytorch_model.bin", "convert")


# ---- config.json


@pytest.mark.parametrize("changes", [
    {"vocab_size": HUGE}, {"draft_vocab_size": HUGE}, {"hidden_size": HUGE}, {"max_position_embeddings": HUGE},
    {"num_hidden_layers": HUGE}, {"num_attention_heads": HUGE}, {"intermediate_size": HUGE},
    {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(range(4096))}},
])
def test_a_config_of_a_terabyte_costs_nothing(drafter, changes):
    raw = json.loads((drafter / "config.json").read_text()) | changes
    (drafter / "config.json").write_text(json.dumps(raw))
    try:
        checkpoint = load_checkpoint(drafter)
    except CheckpointError as error:
        assert next(iter(changes)) in str(error) or "fc.weight" in str(error)
    else:
        assert checkpoint.config.hidden_size == 16, "the shapes win"


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"a":' * 3000, '{"hidden_size": 1' + "0" * 5000 + "}"])
def test_a_config_that_is_none(drafter, text):
    (drafter / "config.json").write_text(text)
    refused(drafter, "config.json")


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000])
@pytest.mark.parametrize("name", ["config.json", "eagle3_ext.json"])
def test_json_nested_too_deeply_is_a_sentence(drafter, name, text):
    (drafter / name).write_text(text)
    refused(drafter, f"{name} cannot be read: its lists or objects are nested too deeply")


def test_a_byte_order_mark_is_no_defect(drafter):
    expected = load_checkpoint(drafter).config
    file = drafter / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    (drafter / "eagle3_ext.json").write_bytes(b'\xef\xbb\xbf{"norm_before_residual": false}')
    assert load_checkpoint(drafter).config == expected


KEYS = ["architectures", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "draft_vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "eagle_config",
        "transformer_layer_config", "speculators_config", "layer_types", "sliding_window", "dtype", "torch_dtype",
        "num_aux_hidden_states", "target_hidden_size", "logit_scale", "norm_output", "partial_rotary_factor",
        "rotary_dim", "num_hidden_layers", "max_position_embeddings", "tie_word_embeddings", "model_type"]
VALUES = [-1, 0, 1.5, 1e400, "x", [], {}, [None], {"rope_type": []}, {"type": "yarn"}, True, 2**70, [[1]],
          {"eagle_aux_hidden_state_layer_ids": [1, "a", None]}, {"eagle_aux_hidden_state_layer_ids": {"a": 1}}]


@pytest.mark.parametrize("key", KEYS)
def test_any_value_under_any_key_gives_a_drafter_or_an_error(drafter, key):
    raw = json.loads((drafter / "config.json").read_text())
    for value in VALUES:
        (drafter / "config.json").write_text(json.dumps(raw | {key: value}))
        try:
            load_checkpoint(drafter)
        except CheckpointError:
            pass  # any other exception fails the test


ROPE_KEYS = ["type", "rope_type", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
             "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor", "alpha", "rope_theta",
             "mrope_section", "partial_rotary_factor"]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
@pytest.mark.parametrize("key", ROPE_KEYS)
def test_any_value_under_any_rope_key_gives_a_table_or_an_error(drafter, kind, key):
    raw = json.loads((drafter / "config.json").read_text())
    form = {"type": kind, "factor": 4.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    for value in [*VALUES, 1e-300, 1e308, "1.0", False, None]:
        (drafter / "config.json").write_text(json.dumps(raw | {"rope_scaling": form | {key: value}}))
        try:
            config = load_checkpoint(drafter).config
        except CheckpointError:
            continue
        assert not rope_table(config.rope_theta, config.rotary_dim, 32, rope=config.rope).isnan().any()


@pytest.mark.parametrize("family, name", [("SpecForge", "fc_norm, norm_output"), ("ModelOpt", "two layers"),
                                          ("speculators", "q/k norm"), ("ModelOpt MLA", "latent attention"),
                                          ("ModelOpt", "no fc"), ("ModelOpt", "tied head")])
def test_any_shape_of_any_tensor_gives_an_error_that_names_it(tmp_path, family, name):
    folder = write(tmp_path, FORMATS[family], variant(name), make_weights(variant(name)))
    stored = load_file(folder / "model.safetensors")
    for key, tensor in stored.items():
        name = re.sub(r"^layers\.\d\.(self_attn\.|mlp\.)?", "", canonical_name(key))
        for shape in ((), (0,), (1,), (3,), (0, 0), (5, 7), (16, 0), (0, 16), (2, 3, 4)):
            save_file(stored | {key: torch.zeros(shape, dtype=tensor.dtype)}, folder / "model.safetensors")
            with pytest.raises(CheckpointError) as error:
                load_checkpoint(folder)
            assert name in str(error.value) or key in str(error.value), f"{shape}: {error.value}"
