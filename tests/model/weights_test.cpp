#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/output.h"
#include "tests/testing/error_of.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_identical;

ModelConfig config_of(const Checkpoint& checkpoint) {
  return parse_model_config(checkpoint.config(), "config.json");
}

// Tensors of a synthetic checkpoint after `edit`, in a new checkpoint under `directory`.
Checkpoint edited(const std::filesystem::path& directory, const SyntheticCheckpoint& options,
                  const std::function<void(std::vector<TensorSource>&)>& edit) {
  const auto original = directory / "original", changed = directory / "changed";
  write_synthetic_checkpoint(original, options);
  const Checkpoint source = Checkpoint::open(original);
  std::vector<TensorSource> tensors;
  for (const std::string& name : source.tensor_names()) {
    const TensorInfo& info = source.info(name);
    tensors.push_back(
        {name, info.dtype, info.shape, [&source, name] { return source.bytes(name); }});
  }
  edit(tensors);
  std::filesystem::create_directory(changed);
  std::filesystem::copy_file(original / "config.json", changed / "config.json");
  write_checkpoint_tensors(changed, std::move(tensors));
  return Checkpoint::open(changed);
}

std::string refusal(const Checkpoint& checkpoint, const std::vector<std::string>& replaced = {}) {
  return error_of([&] { check_tensors(checkpoint, config_of(checkpoint), replaced); });
}

void remove(std::vector<TensorSource>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const TensorSource& tensor) { return tensor.name == name; });
}

void add(std::vector<TensorSource>& tensors, const std::string& name,
         std::vector<std::int64_t> shape) {
  const at::Tensor zeros = at::zeros(shape);
  tensors.push_back({name, Dtype::kF32, std::move(shape), [zeros] {
                       return std::span(static_cast<const std::byte*>(zeros.const_data_ptr()),
                                        zeros.nbytes());
                     }});
}

TEST(CheckTensors, AcceptsEveryArchitecture) {
  for (const ArchSpec& arch : supported_archs()) {
    const TemporaryDirectory directory;
    testing::write_synthetic_checkpoint(directory / "m",
                                        {.model_type = std::string(arch.model_type)});
    EXPECT_EQ(refusal(Checkpoint::open(directory / "m")), "") << arch.model_type;
  }
}

TEST(CheckTensors, NamesMissingTensors) {
  const TemporaryDirectory directory;
  const std::string k_proj = "model.layers.2.self_attn.k_proj.weight";
  const Checkpoint checkpoint = edited(directory.path(), {}, [&](auto& tensors) {
    remove(tensors, "model.norm.weight");
    remove(tensors, k_proj);
  });
  EXPECT_THAT(refusal(checkpoint), AllOf(HasSubstr("2 tensors"), HasSubstr("model.norm.weight"),
                                         HasSubstr(k_proj), HasSubstr("missing")));
  EXPECT_THAT(refusal(checkpoint, {k_proj}), HasSubstr("1 tensors"));
}

TEST(CheckTensors, NamesUnexpectedTensorsAndWrongShapes) {
  const TemporaryDirectory bias, shape;
  EXPECT_THAT(refusal(edited(bias.path(), {},
                             [](auto& tensors) {
                               add(tensors, "model.layers.0.self_attn.q_proj.bias", {32});
                             })),
              AllOf(HasSubstr("no part of the llama"), HasSubstr("self_attn.q_proj.bias")));
  EXPECT_THAT(refusal(edited(shape.path(), {},
                             [](auto& tensors) {
                               remove(tensors, "model.norm.weight");
                               add(tensors, "model.norm.weight", {31});
                             })),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("31"), HasSubstr("32")));
}

TEST(CheckTensors, IgnoresRotaryTablesTiedHeadsAndFactors) {
  const TemporaryDirectory directory;
  EXPECT_EQ(refusal(edited(directory.path(), {.tied_embeddings = true},
                           [](auto& tensors) {
                             const auto embedding =
                                 std::find_if(tensors.begin(), tensors.end(), [](const auto& own) {
                                   return own.name == "model.embed_tokens.weight";
                                 });
                             TensorSource head = *embedding;
                             head.name = "lm_head.weight";
                             tensors.push_back(head);
                             add(tensors, "model.layers.0.self_attn.rotary_emb.inv_freq", {4});
                             add(tensors, "kvconvert.groups.0.latent_proj", {3, 32});
                           })),
            "");
}

TEST(CheckTensors, RefusesATiedHeadOfItsOwn) {
  const TemporaryDirectory directory;
  EXPECT_THAT(refusal(edited(directory.path(), {.tied_embeddings = true},
                             [](auto& tensors) {
                               add(tensors, "lm_head.weight", {96, 32});
                             })),
              AllOf(HasSubstr("lm_head.weight differs from model.embed_tokens.weight"),
                    HasSubstr("tie_word_embeddings")));
}

TEST(LoadTensor, CastsAndCopiesFromMisalignedFiles) {
  const TemporaryDirectory directory;
  // A header of 8 + 113 bytes puts the float32 data at an odd offset; the reader allows it.
  const std::string header =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  const std::uint64_t length = header.size() + 1;
  const float values[2] = {1.5f, -2.0f};
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  file += header + " " + std::string(reinterpret_cast<const char*>(values), 8);
  ASSERT_NE(file.size() % 4, 0u);
  write_file(directory / "model.safetensors", file);
  write_file(directory / "config.json", "{}");
  const Checkpoint checkpoint = Checkpoint::open(directory.path());

  const std::string name = "model.embed_tokens.weight";
  EXPECT_TRUE(tensors_identical(load_tensor(checkpoint, name, {2, 1}, at::kFloat),
                                at::tensor({1.5f, -2.0f}).view({2, 1})));
  EXPECT_EQ(load_tensor(checkpoint, name, {2, 1}, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_THROW(load_tensor(checkpoint, name, {1, 2}, at::kFloat), Error);
  EXPECT_EQ(storage_dtype(checkpoint, ModelConfig{}), at::kFloat);
}

// Memory of this process behind its mappings of `file`, in kB.
std::int64_t resident_kb(const std::string& file) {
  std::ifstream maps("/proc/self/smaps");
  std::int64_t total = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(file)) {
      ours = true;
    } else if (ours && line.starts_with("Rss:")) {
      total += std::stoll(line.substr(4));
      ours = false;
    }
  }
  return total;
}

TEST(LoadTensor, LeavesNoPagesOfTheFileInMemory) {
  const TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory / "m", {.hidden_size = 256, .vocab_size = 4096});
  const std::string file = (directory / "m" / "model.safetensors").string();
  const Checkpoint checkpoint = Checkpoint::open(directory / "m");
  const auto bytes = checkpoint.bytes("model.embed_tokens.weight");       // 4 MB
  EXPECT_GT(std::count(bytes.begin(), bytes.end(), std::byte{0x3f}), 0);  // reads all of it
  ASSERT_GT(resident_kb(file), 4000);
  const at::Tensor loaded =
      load_tensor(checkpoint, "model.embed_tokens.weight", {4096, 256}, at::kFloat);
  EXPECT_LT(resident_kb(file), 1000);
  EXPECT_EQ(std::memcmp(loaded.const_data_ptr(), bytes.data(), bytes.size()), 0);
}

TEST(LoadEmbeddings, EqualsRowsOfTheTable) {
  const TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory / "m", {.dtype = "bfloat16"});
  const Checkpoint checkpoint = Checkpoint::open(directory / "m");
  const ModelConfig config = config_of(checkpoint);
  const at::Tensor ids = at::tensor({95, 0, 3, 3}, at::kLong);
  const at::Tensor table = load_model_weights(checkpoint, config, at::kFloat).embed_tokens;
  EXPECT_TRUE(tensors_identical(load_embeddings(checkpoint, config, ids, at::kFloat),
                                table.index_select(0, ids)));
  EXPECT_THROW(load_embeddings(checkpoint, config, at::tensor({96}, at::kLong), at::kFloat), Error);
}

TEST(FuseProjections, KeepsEveryWeightAsABlockOfRows) {
  const TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory / "m", {.model_type = "qwen2"});
  const Checkpoint checkpoint = Checkpoint::open(directory / "m");
  const LayerWeights apart = load_layer(checkpoint, config_of(checkpoint), 1, at::kFloat);
  LayerWeights fused = apart;
  fuse_projections(fused);
  EXPECT_TRUE(tensors_identical(fused.k_proj.weight, apart.k_proj.weight));
  EXPECT_TRUE(tensors_identical(fused.v_proj.bias, apart.v_proj.bias));
  EXPECT_TRUE(fused.v_proj.weight.is_alias_of(fused.qkv_proj.weight));
  EXPECT_TRUE(tensors_identical(fused.qkv_proj.weight.narrow(0, 32, 16), apart.k_proj.weight));
  EXPECT_TRUE(tensors_identical(fused.gate_up_proj.weight.narrow(0, 48, 48), apart.up_proj.weight));
}

}  // namespace
}  // namespace kvc
