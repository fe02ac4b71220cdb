// The table of families and methods, and what --plan says about where groups end.
#include "convert/methods/methods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "convert/plan_table.h"
#include "model/config.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MethodSupport, TheDocumentHoldsTheProgramsTable) {
  const auto path =
      std::filesystem::path(KVC_TEST_DATA).parent_path().parent_path() / "docs/models.md";
  std::ostringstream document;
  document << std::ifstream(path).rdbuf();
  EXPECT_THAT(document.str(), HasSubstr(support_text()))
      << "paste what kvconvert --list-models prints into " << path;
}

TEST(MethodSupport, EveryFamilyAndMethodHasACell) {
  const Json families = support_json()["families"];
  ASSERT_EQ(families.size(), supported_archs().size());
  for (const Json& family : families) {
    EXPECT_EQ(family["methods"].size(), methods().size()) << family;
    for (const Json& reason : family["methods"]) {
      EXPECT_TRUE(reason.is_null() || (reason.is_string() && !reason.get<std::string>().empty()));
    }
  }
}

std::vector<std::string> ends(const std::string& name, int layers_per_group) {
  ConvertSettings settings;
  settings.layers_per_group = layers_per_group;
  const Checkpoint checkpoint = Checkpoint::open_config_only(testing::zoo_directory() / name);
  std::vector<std::string> texts;
  for (const PlanRow& row : plan_table(read_model_config(checkpoint), settings, true).rows) {
    texts.push_back(row.ends);
  }
  return texts;
}

TEST(PlanRows, SayWhyAGroupEndsEarly) {
  EXPECT_THAT(ends("llama_gqa", 4), ElementsAre(""));
  EXPECT_THAT(ends("llama_gqa", 2), ElementsAre("", "")) << "full groups need no reason";
  EXPECT_THAT(ends("qwen2_window", 4), ElementsAre("window none -> 8 tokens", ""));
  EXPECT_THAT(ends("qwen2_window", 2), ElementsAre("", ""));
  EXPECT_THAT(ends("qwen2_layer_types", 4),
              ElementsAre("window 8 tokens -> none", "window none -> 8 tokens", ""));
}

}  // namespace
}  // namespace kvc
