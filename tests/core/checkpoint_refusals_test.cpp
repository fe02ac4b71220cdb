// Checkpoints that are refused, and those that only look unusual.
#include "core/checkpoint.h"
#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CheckpointRefusals : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    config("{\"model_type\": \"llama\"}");
  }
  void config(std::string_view text) { put(file("config.json"), text); }
  std::string open_error() {
    return error_of([&] { Checkpoint::open(directory()); });
  }
};

// A file with one tensor of `type` and `num_bytes` bytes.
std::string one_tensor(const std::string& name, const std::string& type, int num_bytes) {
  return safetensors_bytes(
      fmt::format(R"({{"{}":{{"dtype":"{}","shape":[4],"data_offsets":[0,{}]}}}})", name, type,
                  num_bytes),
      static_cast<std::size_t>(num_bytes));
}

TEST_F(CheckpointRefusals, PickledWeightsComeWithTheCommandThatConvertsThem) {
  put(file("pytorch_model.bin"), "x");
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("python3 -c \""),
                    HasSubstr(fmt::format("'{}-safetensors'", directory().string()))));
  put(file("model-00001-of-00002.safetensors"), zeros_file({"a"}));
  EXPECT_THAT(open_error(), AllOf(HasSubstr("model-00001-of-00002.safetensors"),
                                  HasSubstr("nor model.safetensors.index.json")));
}

TEST_F(CheckpointRefusals, GgufWithOrWithoutAConfig) {
  put(file("model.gguf"), "x");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("GGUF"), HasSubstr("model.gguf")));
  fs::remove(file("config.json"));
  EXPECT_THAT(open_error(), HasSubstr("GGUF"));
  EXPECT_THAT(error_of([&] { Checkpoint::open(file("model.gguf")); }), HasSubstr("GGUF"));
}

TEST_F(CheckpointRefusals, ConfigsThatSayQuantised) {
  put(file("model.safetensors"), zeros_file({"a"}));
  for (const char* method : {"gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors"}) {
    config(fmt::format(R"({{"quantization_config": {{"quant_method": "{}"}}}})", method));
    EXPECT_THAT(open_error(),
                AllOf(HasSubstr("quantised"), HasSubstr(method), HasSubstr("it was made from")));
  }
  config(R"({"text_config": {"quantization_config": {"bits": 4}}})");
  EXPECT_THAT(open_error(), HasSubstr("quantised"));
  config(R"({"quantization_config": "int4"})");
  EXPECT_THAT(open_error(), HasSubstr("quantised"));
  config(R"({"quantization_config": null, "text_config": {"quantization_config": null}})");
  EXPECT_EQ(open_error(), "");
}

TEST_F(CheckpointRefusals, HeadersThatShowQuantisedWeights) {
  const std::string layer = "model.layers.0.self_attn.q_proj.";
  for (const char* part : {"qweight", "qzeros", "weight_packed", "weight_scale", "weight_scale_inv",
                           "weight.absmax", "SCB"}) {
    put(file("model.safetensors"), one_tensor(layer + part, "I32", 16));
    EXPECT_THAT(open_error(), AllOf(HasSubstr("quantised"), HasSubstr(layer + part),
                                    HasSubstr("it was made from")));
  }
  for (const char* type : {"F8_E4M3", "F8_E5M2", "F8_E8M0"}) {
    put(file("model.safetensors"), one_tensor(layer + "weight", type, 4));
    EXPECT_THAT(open_error(), AllOf(HasSubstr("quantised"), HasSubstr(type)));
  }
  put(file("model.safetensors"), one_tensor("vision.position_ids", "I32", 16));
  EXPECT_EQ(open_error(), "") << "integers alone are no sign of quantisation";
}

// snapshots/<revision>/<file> -> ../../blobs/<hash>, as the hub's cache keeps them.
TEST_F(CheckpointRefusals, ASnapshotOfTheHubCacheIsNoneOfThem) {
  const fs::path blobs = file("blobs"), snapshot = file("snapshots/abc");
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  const auto add = [&](const char* name, std::string_view bytes, const char* blob) {
    put(blobs / blob, bytes);
    fs::create_symlink(fs::path("../../blobs") / blob, snapshot / name);
  };
  add("config.json", "{}", "c0");
  add("tokenizer.json", "{}", "t0");
  add("model-1.safetensors", zeros_file({"a", "c"}), "s1");
  add("model-2.safetensors", zeros_file({"b"}), "s2");
  add("model.safetensors.index.json",
      R"({"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors",)"
      R"("c":"model-1.safetensors"}})",
      "i0");
  const Checkpoint checkpoint = Checkpoint::open(snapshot);
  EXPECT_THAT(checkpoint.tensor_names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.bytes("b").size(), 4u);
  EXPECT_THAT(checkpoint.companion_files(), ElementsAre("tokenizer.json"));
  fs::remove(blobs / "s2");
  EXPECT_THAT(error_of([&] { Checkpoint::open(snapshot); }),
              HasSubstr("shard model-2.safetensors is missing"));
}

}  // namespace
}  // namespace kvc
