#include "core/checkpoint.h"

#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kData = KVC_TEST_DATA;
constexpr const char* kConfig = "{\"model_type\": \"llama\", \"rms_norm_eps\": 1e-06}\n";

class CheckpointTest : public FilesTest {
 protected:
  void config(std::string_view text = kConfig) { put(file("config.json"), text); }
  void index(const std::string& weight_map) {
    put(file("model.safetensors.index.json"), "{\"weight_map\":" + weight_map + "}");
  }
  std::string open_error() {
    return error_of([&] { Checkpoint::open(directory()); });
  }
};

TEST_F(CheckpointTest, OpensARealOne) {
  const Checkpoint checkpoint = Checkpoint::open(kData / "reference-llama");
  EXPECT_EQ(checkpoint.config()["hidden_size"], 256);
  EXPECT_TRUE(checkpoint.has_weights());
  EXPECT_TRUE(checkpoint.contains("model.norm.weight"));
  EXPECT_EQ(checkpoint.info("model.layers.3.self_attn.k_proj.weight", {64, 256}).dtype,
            Dtype::kBF16);
  EXPECT_EQ(checkpoint.bytes("model.norm.weight").size(), 512u);
  EXPECT_THAT(error_of([&] {
                checkpoint.info("model.norm.weight", {2, 3});
              }),
              AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("[256]"), HasSubstr("[2, 3]")));
  EXPECT_THAT(error_of([&] { checkpoint.bytes("absent"); }),
              AllOf(HasSubstr("reference-llama"), HasSubstr("'absent' is missing")));
  EXPECT_THAT(checkpoint.companion_files(),
              ElementsAre("generation_config.json", "tokenizer.json", "tokenizer_config.json"));
}

TEST_F(CheckpointTest, OpensConfigAlone) {
  config();
  const Checkpoint checkpoint = Checkpoint::open_config_only(directory());
  EXPECT_FALSE(checkpoint.has_weights());
  EXPECT_EQ(checkpoint.config()["model_type"], "llama");
  EXPECT_EQ(checkpoint.hash().size(), 64u);
}

TEST_F(CheckpointTest, SaysWhatIsNoCheckpoint) {
  EXPECT_THAT(error_of([&] { Checkpoint::open(file("absent")); }),
              HasSubstr("absent: does not exist"));
  EXPECT_THAT(open_error(), HasSubstr("no config.json"));
  config();
  EXPECT_THAT(error_of([&] { Checkpoint::open(file("config.json")); }),
              HasSubstr("not a directory"));
  EXPECT_THAT(open_error(), HasSubstr("no weights; expected model.safetensors"));
  put(file("model.safetensors"), safetensors_bytes("{}", 0));
  EXPECT_THAT(open_error(), HasSubstr("holds no tensors"));
  config("[]");
  EXPECT_THAT(open_error(), HasSubstr("expected a JSON object, found array"));
}

TEST_F(CheckpointTest, ReadsShards) {
  config();
  put(file("one.safetensors"), zeros_file({"a", "c"}));
  put(file("two.safetensors"), zeros_file({"b"}));
  index(R"({"c":"one.safetensors","b":"two.safetensors","a":"one.safetensors"})");
  const Checkpoint checkpoint = Checkpoint::open(directory());
  EXPECT_THAT(checkpoint.tensor_names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.bytes("b").size(), 4u);
}

TEST_F(CheckpointTest, KeepsWeightsWhereOnlyFactorsCome) {
  const auto written = [&](const std::string& name, const std::string& weights) {
    std::filesystem::create_directories(file(name));
    put(file(name) / "config.json", kConfig);
    put(file(name) / "model.safetensors", weights);
    return Checkpoint::open(file(name));
  };
  const Checkpoint original = written("original", zeros_file({"a", "b"}));
  std::string flipped = zeros_file({"a", "b"});
  flipped.back() = 1;
  EXPECT_TRUE(keeps_weights(written("copy", zeros_file({"a", "b"})), original));
  EXPECT_TRUE(keeps_weights(written("factors", zeros_file({"a", "b", "kvconvert.c"})), original));
  EXPECT_FALSE(keeps_weights(written("flipped", flipped), original));
  EXPECT_FALSE(keeps_weights(written("fewer", zeros_file({"a"})), original));
  EXPECT_FALSE(keeps_weights(written("more", zeros_file({"a", "b", "c"})), original));
  std::string other_type = zeros_file({"a", "b"});
  const std::size_t type = other_type.find("F32");
  ASSERT_NE(type, std::string::npos);
  other_type.replace(type, 3, "I32");
  EXPECT_FALSE(keeps_weights(written("type", other_type), original));
}

TEST_F(CheckpointTest, RefusesAnIndexThatDisagreesWithItsShards) {
  config();
  put(file("one.safetensors"), zeros_file({"a", "c"}));
  put(file("two.safetensors"), zeros_file({"b"}));
  index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("one.safetensors: tensor 'c' is not in the index"));
  index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("'c' is in this file, the index says it is in two"));
  index(
      R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors","d":"two.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("two.safetensors: tensor 'd' is missing"));
  index(R"({"a":"one.safetensors","d":"absent.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("shard absent.safetensors is missing"));
  put(file("two.safetensors"), zeros_file({"b", "a"}));
  index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("'a' is in this file, the index says it is in one"));
}

TEST_F(CheckpointTest, RefusesAnIndexThatLeavesTheDirectory) {
  config();
  for (const char* name :
       {"\"../x.safetensors\"", "\"/etc/x.safetensors\"", "\"a\\\\b.safetensors\"",
        "\".x.safetensors\"", "\"x.bin\"", "\"\"", "3", "\"a\\u0000.safetensors\""}) {
    index(fmt::format("{{\"a\":{}}}", name));
    EXPECT_THAT(open_error(), HasSubstr("expected the name of a .safetensors file")) << name;
  }
  index("{}");
  EXPECT_THAT(open_error(), HasSubstr("weight_map is empty"));
  index("[]");
  EXPECT_THAT(open_error(), HasSubstr("\"weight_map\""));
  index(R"({"a":"x.safetensors","a":"x.safetensors"})");
  EXPECT_THAT(open_error(), HasSubstr("appears twice"));
}

TEST_F(CheckpointTest, PrefersTheSingleFileAsTransformersDoes) {
  config();
  put(file("model.safetensors"), zeros_file({"a"}));
  index(R"({"z":"absent.safetensors"})");
  EXPECT_THAT(Checkpoint::open(directory()).tensor_names(), ElementsAre("a"));
}

TEST_F(CheckpointTest, HashesConfigHeadersAndEveryByte) {
  const auto write = [&](std::string_view config_text, const std::string& data) {
    config(config_text);
    put(file("model.safetensors"),
        safetensors_bytes(R"({"t":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})", 0) +
            data);
    return Checkpoint::open(directory()).hash();
  };
  const std::string data(100'000, 'x');
  const std::string hash = write(kConfig, data);
  EXPECT_EQ(write(kConfig, data), hash);
  EXPECT_NE(write("{\"model_type\": \"llama\", \"rms_norm_eps\": 1e-6}\n", data), hash);
  for (std::size_t changed : {0, 4095, 5000, 33'333, 50'000, 99'999}) {
    std::string other = data;
    other[changed] = 'y';
    EXPECT_NE(write(kConfig, other), hash) << changed;
  }
}

TEST_F(CheckpointTest, ListsCompanionsAndNothingElse) {
  config();
  for (const char* name : {"tokenizer.json",
                           "merges.txt",
                           "LICENSE",
                           "Licence.txt",
                           "NOTICE.md",
                           "USE_POLICY.md",
                           "chat_template.jinja",
                           "modeling_x.py",
                           "license.py",
                           "pytorch_model.bin",
                           ".hidden",
                           "training_args.bin",
                           "README.md",
                           "license.bin",
                           "optimizer.pt",
                           "preprocessor_config.json",
                           "processor_config.json",
                           "video_preprocessor_config.json",
                           "chat_template.json",
                           "vocab.txt",
                           "spiece.model"}) {
    put(file(name), "x");
  }
  std::filesystem::create_directory(file("additional_chat_templates"));
  put(file("additional_chat_templates/tool.jinja"), "x");
  put(file("additional_chat_templates/evil.py"), "x");
  std::filesystem::create_directory(file("vocab.json"));
  EXPECT_THAT(Checkpoint::open_config_only(directory()).companion_files(),
              ElementsAre("LICENSE", "Licence.txt", "NOTICE.md", "USE_POLICY.md",
                          "additional_chat_templates/tool.jinja", "chat_template.jinja",
                          "chat_template.json", "merges.txt", "preprocessor_config.json",
                          "processor_config.json", "spiece.model", "tokenizer.json",
                          "video_preprocessor_config.json", "vocab.txt"));
}

std::vector<TensorSource> zeros(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
  static const std::vector<std::byte> kZeros(1000);
  std::vector<TensorSource> sources;
  for (const auto& [name, size] : sizes) {
    sources.push_back({name, Dtype::kF32, {size}, [bytes = static_cast<std::size_t>(size) * 4] {
                         return std::span(kZeros).first(bytes);
                       }});
  }
  return sources;
}

TEST_F(CheckpointTest, WritesShardsAndIndexAsTransformersDoes) {
  config();
  write_checkpoint_tensors(
      directory(),
      zeros({{"b", 4}, {"a", 8}, {"huge", 40}, {"c", 9}, {"caf\u00e9", 4}, {"d", 16}, {"last", 1}}),
      64);
  EXPECT_EQ(contents(file("model.safetensors.index.json")),
            contents(kData / "safetensors/model.safetensors.index.json"));
  EXPECT_EQ(Checkpoint::open(directory()).tensor_names().size(), 7u);
}

TEST_F(CheckpointTest, WritesOneFileWithoutIndexWhenItFits) {
  config();
  write_checkpoint_tensors(directory(), zeros({{"b", 4}, {"a", 12}}), 64);
  EXPECT_TRUE(std::filesystem::exists(file("model.safetensors")));
  EXPECT_FALSE(std::filesystem::exists(file("model.safetensors.index.json")));
  EXPECT_THAT(error_of([&] { write_checkpoint_tensors(directory(), {}); }),
              HasSubstr("no tensors"));
}

}  // namespace
}  // namespace kvc
