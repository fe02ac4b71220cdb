#include "runtime/program/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class GenerationConfig : public ::testing::Test {
 protected:
  void write(const std::string& json) {
    std::ofstream(directory_ / "generation_config.json") << json;
  }
  SamplingOptions resolved(const SamplingRequest& request) {
    return resolve(request, directory_.path());
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(GenerationConfig, GreedyUnlessSamplingIsAskedFor) {
  write(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1})");
  const SamplingOptions options = resolved({});
  EXPECT_EQ(options.temperature, 0);
  EXPECT_EQ(options.repetition_penalty, 1);
  EXPECT_EQ(resolved({.temperature = 0.5}).top_p, 1);
}

TEST_F(GenerationConfig, TheAuthorsSettingsAndWhatReplacesThem) {
  write(
      R"({"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1})");
  SamplingRequest request{.sample = true};
  SamplingOptions options = resolved(request);
  EXPECT_EQ(options.temperature, 0.6);
  EXPECT_EQ(options.top_k, 20);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.min_p, 0.05);
  EXPECT_EQ(options.repetition_penalty, 1.1);
  request.top_k = 0;
  request.top_p = 1;
  options = resolved(request);
  EXPECT_EQ(options.top_k, 0);
  EXPECT_EQ(options.top_p, 1);
  EXPECT_EQ(options.min_p, 0.05);
}

TEST_F(GenerationConfig, WhatTheAuthorsLeaveOpenIsAsInTransformers) {
  for (const char* json : {"", "{}", R"({"temperature": null})"}) {
    if (*json != '\0') {
      write(json);
    }
    const SamplingOptions options = resolved({.sample = true});
    EXPECT_EQ(options.temperature, 1);
    EXPECT_EQ(options.top_k, 50);
    EXPECT_EQ(options.top_p, 1);
    EXPECT_EQ(options.min_p, 0);
    EXPECT_EQ(options.repetition_penalty, 1);
  }
}

TEST_F(GenerationConfig, RefusesImpossibleValues) {
  for (const auto& [json, word] : {std::pair(R"({"top_p": 1.5})", "--top-p"),
                                   {R"({"temperature": "hot"})", "temperature"},
                                   {R"({"top_k": 2.5})", "top_k"},
                                   {"[1]", "object"}}) {
    write(json);
    EXPECT_THAT([&] { resolved({.sample = true}); },
                ThrowsMessage<Error>(AllOf(HasSubstr("generation_config.json"), HasSubstr(word))));
  }
  EXPECT_THROW(resolve({.temperature = -1}, "absent"), UsageError);
}

}  // namespace
}  // namespace kvc
