#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "core/checkpoint.h"
#include "model/arch.h"
#include "tests/export/export_fixture.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {
namespace {

class FoldedExport : public ExportFixture {
 protected:
  at::Tensor factor(const std::string& name) const {
    return read_tensor(conversion_ / "conversion.safetensors", "kvconvert.groups." + name)
        .to(at::kDouble);
  }
  at::Tensor folded(int layer, const std::string& projection) const {
    return tensor_of(out_, fmt::format("model.layers.{}.self_attn.{}.weight", layer, projection));
  }
};

TEST_F(FoldedExport, JointRowsAreLayerByLayerKeysAndThenValues) {
  make(joint_plan());
  export_as(ExportFormat::kFolded);
  const std::int64_t kv_dim = 16;
  const at::Tensor product = at::mm(factor("0.reconstruct_proj"), factor("0.latent_proj"));
  EXPECT_TRUE(
      tensors_close(folded(0, "k_proj").to(at::kDouble), product.narrow(0, 0, kv_dim), 1e-5));
  EXPECT_TRUE(
      tensors_close(folded(0, "v_proj").to(at::kDouble), product.narrow(0, kv_dim, kv_dim), 1e-5));
  EXPECT_TRUE(tensors_close(folded(1, "k_proj").to(at::kDouble),
                            product.narrow(0, 2 * kv_dim, kv_dim), 1e-5));
  EXPECT_TRUE(tensors_close(folded(1, "v_proj").to(at::kDouble),
                            product.narrow(0, 3 * kv_dim, kv_dim), 1e-5));
  const at::Tensor single = at::mm(factor("1.reconstruct_proj"), factor("1.latent_proj"));
  EXPECT_TRUE(
      tensors_close(folded(2, "v_proj").to(at::kDouble), single.narrow(0, kv_dim, kv_dim), 1e-5));
}

TEST_F(FoldedExport, SplitGroupsFoldKeysAndValuesSeparately) {
  make(split_plan());
  export_as(ExportFormat::kFolded);
  EXPECT_TRUE(tensors_close(folded(3, "k_proj").to(at::kDouble),
                            at::mm(factor("3.key.reconstruct_proj"), factor("3.key.latent_proj")),
                            1e-5));
  EXPECT_TRUE(tensors_close(
      folded(3, "v_proj").to(at::kDouble),
      at::mm(factor("3.value.reconstruct_proj"), factor("3.value.latent_proj")), 1e-5));
}

// Everything but the latent layers' projections is the source's, byte for byte; whatever the
// family.
TEST_F(FoldedExport, ChangesNothingElse) {
  for (const ArchSpec& arch : supported_archs()) {
    if (arch.latent_attention) {
      continue;  // has no key and value projections
    }
    SCOPED_TRACE(arch.model_type);
    synthetic_.model_type = arch.model_type;
    synthetic_.dtype = "bfloat16";
    std::filesystem::remove_all(checkpoint_);
    std::filesystem::remove_all(out_);
    make(joint_plan());
    export_as(ExportFormat::kFolded);
    const Checkpoint before = Checkpoint::open(checkpoint_), after = Checkpoint::open(out_);
    ASSERT_EQ(before.tensor_names(), after.tensor_names());
    int changed = 0;
    for (const std::string& name : before.tensor_names()) {
      EXPECT_EQ(before.info(name).dtype, after.info(name).dtype) << name;
      const bool same = std::ranges::equal(before.bytes(name), after.bytes(name));
      const bool projection = name.ends_with("k_proj.weight") || name.ends_with("v_proj.weight") ||
                              name.ends_with("qkv_proj.weight");
      EXPECT_TRUE(same || projection) << name;
      changed += same ? 0 : 1;
    }
    EXPECT_EQ(changed, arch.fused_projections ? 3 : 6);  // three latent layers
    EXPECT_EQ(read_all(out_ / "config.json"), read_all(checkpoint_ / "config.json"));
  }
}

// Queries lie in front of the keys and values of a fused projection, and stay.
TEST_F(FoldedExport, RowsOfAFusedProjectionAreReplaced) {
  synthetic_.model_type = "phi3";
  make(joint_plan());
  export_as(ExportFormat::kFolded);
  const std::string name = "model.layers.1.self_attn.qkv_proj.weight";
  const at::Tensor before = tensor_of(checkpoint_, name), after = tensor_of(out_, name);
  EXPECT_TRUE(tensors_identical(after.narrow(0, 0, 32), before.narrow(0, 0, 32)));
  const at::Tensor product = at::mm(factor("0.reconstruct_proj"), factor("0.latent_proj"));
  EXPECT_TRUE(
      tensors_close(after.narrow(0, 32, 32).to(at::kDouble), product.narrow(0, 32, 32), 1e-5));
}

TEST_F(FoldedExport, UnknownTensorsAreCopiedAndRopeBuffersDropped) {
  make(joint_plan());
  const Checkpoint before = Checkpoint::open(checkpoint_);
  std::vector<TensorSource> sources;
  for (const std::string& name : before.tensor_names()) {
    sources.push_back({name, before.info(name).dtype, before.info(name).shape,
                       [&before, name] { return before.bytes(name); }});
  }
  const std::vector<std::byte> extra(16, std::byte{7});
  for (const char* name : {"model.extra.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}) {
    sources.push_back({name, Dtype::kF32, {4}, [&extra] { return std::span(extra); }});
  }
  write_safetensors(checkpoint_ / "new.safetensors", sources);
  std::filesystem::rename(checkpoint_ / "new.safetensors", checkpoint_ / "model.safetensors");
  write_conversion_of(joint_plan(), Checkpoint::open(checkpoint_).hash());

  export_as(ExportFormat::kFolded);
  const Checkpoint after = Checkpoint::open(out_);
  EXPECT_TRUE(std::ranges::equal(after.bytes("model.extra.weight"), extra));
  EXPECT_FALSE(after.contains("model.layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST_F(FoldedExport, LosesKeysThatWouldChangeHowItLoads) {
  make(joint_plan());
  const char* json_files[] = {"config.json", "generation_config.json", "tokenizer_config.json"};
  const Json own = read_json(checkpoint_ / "config.json");
  for (const char* file : json_files) {
    Json json = std::string(file) == "config.json" ? own : Json{{"kept", 2}};
    json["text"] = {{"kept", 1}};
    Json unsafe = json;
    unsafe["_name_or_path"] = "somewhere";
    unsafe["auto_map"] = {{"AutoConfig", "configuration_x.X"}};
    unsafe["text"]["auto_map"] = {{"AutoModel", "modeling_x.X"}};
    unsafe["text"]["trust_remote_code"] = true;
    unsafe["text"]["_attn_implementation_internal"] = "eager";
    write_all(checkpoint_ / file, dump_json(unsafe));
    write_all(directory_ / file, dump_json(json));
  }
  for (const char* code : {"configuration_x.py", "modeling_x.py", "tokenization_x.py"}) {
    write_all(checkpoint_ / code, "raise SystemExit\n");
  }
  write_conversion_of(joint_plan(), Checkpoint::open(checkpoint_).hash());
  export_as(ExportFormat::kFolded);
  for (const char* file : json_files) {
    EXPECT_EQ(read_all(out_ / file), read_all(directory_ / file));
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out_)) {
    EXPECT_NE(entry.path().extension(), ".py") << entry.path();
  }
}

}  // namespace
}  // namespace kvc::testing
