// Coded conversions from a checkpoint to conversion.safetensors, with statistics as the programs write them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "convert/coded/coded_plan.h"
#include "convert/coded/coded_settings.h"
#include "core/safetensors.h"
#include "model/layer_stream.h"
#include "tests/convert/coded_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

using testing::CodedConversion;
using ::testing::HasSubstr;
using testing::tensors_close;
using testing::total_error;
namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool has_factor(const fs::path& conversion, std::size_t block, const char* name) {
  const SafetensorsFile file = SafetensorsFile::open(conversion / "conversion.safetensors");
  return file.find(fmt::format("kvconvert.coded.{}.{}", block, name)) != nullptr;
}

TEST_F(CodedConversion, WritesWhatThePlanSays) {
  write_model({.num_layers = 5});
  int index = 0;
  for (const char* scope : {"head", "layer", "group", "head:0,layer:1,group:2-4"}) {
    const fs::path out = convert_to(fmt::format("c{}", index++), settings(0.25, scope));
    const Conversion conversion = read_conversion(out);
    EXPECT_NO_THROW(conversion.plan.check());
    EXPECT_EQ(conversion.coded.size(), conversion.plan.coded.size());
    EXPECT_LE(coded_kept_ratio(*config_, conversion.plan, 2048), 0.25);
    EXPECT_GT(coded_kept_ratio(*config_, conversion.plan, 2048), 0.245) << scope;
    for (std::size_t i = 0; i < conversion.plan.coded.size(); ++i) {
      const CodedBlock& block = conversion.plan.coded[i];
      const std::int64_t k = block.num_coefficients();
      const at::Tensor encoder = factor(out, i, "encoder"), decoder = factor(out, i, "decoder");
      EXPECT_EQ(encoder.sizes(), decoder.t().sizes());
      EXPECT_TRUE(tensors_close(at::mm(encoder, decoder), at::eye(k), 1e-3)) << scope << ' ' << i;
      EXPECT_EQ(factor(out, i, "mean").sizes(), (std::vector<std::int64_t>{decoder.size(0)}));
      const at::Tensor steps = factor(out, i, "steps");
      EXPECT_EQ(steps.sizes(), (std::vector<std::int64_t>{k}));
      EXPECT_TRUE((steps > 0).all().item<bool>());
      EXPECT_GE(k, 1);
      EXPECT_EQ(conversion.coded[i].bits, block.bits());
    }
  }
}

TEST_F(CodedConversion, ErrorsFallWithTheBudgetAndAreAsPredicted) {
  write_model({});
  for (const char* scope : {"head", "layer", "group"}) {
    double before = 0;
    for (const double kept : {0.05, 0.1, 0.25}) {
      const Conversion conversion =
          read_conversion(convert_to(fmt::format("{}{}", scope, kept), settings(kept, scope)));
      const double predicted = total_error(conversion, &CodedReport::predicted_error);
      EXPECT_NEAR(total_error(conversion, &CodedReport::measured_error), predicted, 0.2 * predicted)
          << scope << ' ' << kept;
      EXPECT_TRUE(before == 0 || predicted < before) << scope << ' ' << kept;
      EXPECT_LT(predicted, total_error(conversion, &CodedReport::energy));
      before = predicted;
    }
  }
}

// A larger scope can do whatever a smaller one can (up to what the samples are noisy by), and more widths
// what fewer can.
TEST_F(CodedConversion, LargerScopesAndMoreWidthsLoseLess) {
  write_model({});
  const auto error = [&](const std::string& scope, CodeWidths widths, const std::string& name) {
    ConvertSettings chosen = settings(0.2, scope);
    chosen.own<CodedSettings>().widths = widths;
    return total_error(read_conversion(convert_to(name, chosen)), &CodedReport::predicted_error);
  };
  const double all = error("layer", CodeWidths::kAll, "all");
  EXPECT_LT(all, error("layer", CodeWidths::kPowers, "powers"));
  EXPECT_LT(all, error("layer", CodeWidths::kNibbles, "nibbles"));
  EXPECT_LT(all, 1.02 * error("head", CodeWidths::kAll, "head"));
}

TEST_F(CodedConversion, EveryMetricConverts) {
  write_model({.model_type = "qwen3"});
  for (const CacheMetric metric : {CacheMetric::kFisher, CacheMetric::kAttention,
                                   CacheMetric::kScaledAttention, CacheMetric::kNone}) {
    ConvertSettings chosen = settings(0.25, "layer");
    chosen.cache_metric = metric;
    const Conversion conversion = read_conversion(convert_to(to_string(metric), chosen));
    EXPECT_GT(total_error(conversion, &CodedReport::energy),
              4 * total_error(conversion, &CodedReport::measured_error))
        << to_string(metric);
  }
}

TEST_F(CodedConversion, GainsCostTheirByte) {
  write_model({});
  ConvertSettings chosen = settings(0.25, "head");
  chosen.own<CodedSettings>().gain = GainChoice::kOn;
  const Conversion on = read_conversion(convert_to("on", chosen));
  chosen.own<CodedSettings>().gain = GainChoice::kOff;
  const Conversion off = read_conversion(convert_to("off", chosen));
  std::int64_t bits_on = 0, bits_off = 0;
  for (std::size_t i = 0; i < on.coded.size(); ++i) {
    EXPECT_TRUE(on.plan.coded[i].gain);
    EXPECT_FALSE(off.plan.coded[i].gain);
    bits_on += on.coded[i].bits;
    bits_off += off.coded[i].bits;
  }
  EXPECT_EQ(bits_off - bits_on, 8 * static_cast<std::int64_t>(on.coded.size()));
}

TEST_F(CodedConversion, GainsComeWhereTheyCostAQuarterOrLess) {
  write_model({});
  const auto converted = [&](double kept_ratio, GainChoice gain) {
    ConvertSettings chosen = settings(kept_ratio, "head");
    chosen.own<CodedSettings>().gain = gain;
    return read_conversion(
        convert_to(fmt::format("{}-{}", kept_ratio, static_cast<int>(gain)), chosen));
  };
  std::size_t narrow_without = 0, wide = 0;
  for (const double kept_ratio : {0.4, 0.06}) {
    const Conversion without = converted(kept_ratio, GainChoice::kOff);
    const Conversion chosen = converted(kept_ratio, GainChoice::kAuto);
    for (std::size_t i = 0; i < chosen.coded.size(); ++i) {
      const bool is_wide = without.coded[i].bits >= 32;
      wide += is_wide;
      EXPECT_TRUE(chosen.plan.coded[i].gain || !is_wide) << i;
      narrow_without += !is_wide && !chosen.plan.coded[i].gain;
    }
  }
  EXPECT_GT(wide, 0U);
  EXPECT_GT(narrow_without, 0U);
}

TEST_F(CodedConversion, HeadsOfALayerTakeEquallyManyBitsIfAskedFor) {
  write_model({});
  ConvertSettings chosen = settings(0.25, "head");
  chosen.own<CodedSettings>().form = "rotated";
  const Conversion free = read_conversion(convert_to("free", chosen));
  chosen.own<CodedSettings>().head_bits = HeadBits::kEqual;
  const Conversion equal = read_conversion(convert_to("equal", chosen));
  const auto bits_of = [](const Conversion& conversion) {
    std::map<std::pair<int, CodedParts>, std::vector<std::int64_t>> bits;  // of each head
    for (std::size_t i = 0; i < conversion.coded.size(); ++i) {
      const CodedBlock& block = conversion.plan.coded[i];
      bits[{block.first_layer, block.part}].push_back(conversion.coded[i].bits);
    }
    return bits;
  };
  bool differs = false;
  for (const auto& [layer, heads] : bits_of(free)) {
    differs |= heads.front() != heads.back();
  }
  EXPECT_TRUE(differs);
  const auto free_bits = bits_of(free);
  for (const auto& [layer, heads] : bits_of(equal)) {
    std::int64_t all = 0, all_free = 0;
    for (std::size_t head = 0; head < heads.size(); ++head) {
      EXPECT_NEAR(static_cast<double>(heads[head]), static_cast<double>(heads.front()), 2)
          << "layer " << layer.first;
      all += heads[head];
      all_free += free_bits.at(layer)[head];
    }
    EXPECT_LE(all, all_free);
    EXPECT_GE(all, all_free - 2 * static_cast<std::int64_t>(heads.size()));
  }
}

// What a text's first token has does not depend on the rest of the text.
TEST_F(CodedConversion, FirstTokensThatAreCodedHaveAMeanOfTheirOwn) {
  write_model({});
  ConvertSettings chosen = settings(0.25, "layer");
  EXPECT_FALSE(has_factor(convert_to("tiles", chosen), 0, "first"));
  chosen.prefill = PrefillMode::kCoded;
  chosen.window_tokens = 0;
  chosen.sink_tokens = 1;
  EXPECT_FALSE(has_factor(convert_to("sink", chosen), 0, "first"));
  chosen.sink_tokens = 0;
  const fs::path out = convert_to("first", chosen);
  TokenSet firsts = tokens_;
  for (std::vector<std::int64_t>& sequence : firsts.sequences) {
    sequence.resize(1);
  }
  LayerStream stream(*checkpoint_, *config_, firsts, {});
  stream.advance(config_->num_layers, [&](const LayerActivations& activations) {
    const at::Tensor y = at::cat({activations.key.flatten(1), activations.value.flatten(1)}, 1);
    const auto block = static_cast<std::size_t>(activations.layer);
    EXPECT_TRUE(tensors_close(factor(out, block, "first"), y.mean(0), 1e-5));
    EXPECT_FALSE(tensors_close(factor(out, block, "mean"), y.mean(0), 1e-2));
  });
}

// Blocks that are too wide for codes of a whole basis. What is coded coarsely hides more rounding.
TEST_F(CodedConversion, WideBlocksTake8BitsWhereTheirErrorHidesIt) {
  write_model({.head_dim = 72}, 52);  // 1152 channels, 52 * 92 tokens
  const auto wide_share = [&](double kept_ratio) {
    const fs::path out = convert_to(fmt::format("c{}", kept_ratio), settings(kept_ratio, "group"));
    EXPECT_FALSE(has_factor(out, 0, "decoder_codes"));
    double share = 0;
    for (const char* name : {"encoder", "decoder"}) {
      const std::string choice = std::string(name) + ".wide";
      const auto coefficients = static_cast<double>(factor(out, 0, "steps").size(0));
      share += has_factor(out, 0, choice.c_str())
                   ? static_cast<double>(factor(out, 0, choice.c_str()).item<std::int64_t>()) /
                         coefficients
                   : 1;
    }
    return share / 2;
  };
  const double coarse = wide_share(0.02), fine = wide_share(0.25);
  EXPECT_LT(coarse, fine);
  EXPECT_LT(coarse, 0.5);
}

TEST_F(CodedConversion, IsTheSameEveryTime) {
  write_model({});
  const fs::path a = convert_to("a", settings(0.25, "group"));
  const fs::path b = convert_to("b", settings(0.25, "group"));
  for (const char* name : {"conversion.h5", "conversion.safetensors"}) {
    EXPECT_EQ(contents(a / name), contents(b / name)) << name;
  }
}

TEST_F(CodedConversion, RefusesTooFewTokens) {
  write_model({}, 4);  // 4 * 92 tokens against 4 * 128 channels of the group
  EXPECT_NO_THROW(convert_to("layer", settings(0.25, "layer")));
  EXPECT_THAT(error_of([&] { convert_to("group", settings(0.25, "group")); }),
              HasSubstr("368 tokens, expected at least 512"));
}

}  // namespace
}  // namespace kvc
