#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "core/json.h"
#include "validate/chart.h"
#include "validate/evaluation_text.h"
#include "validate/report.h"
#include "validate/validate.h"
#include "validate/verdict.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

ValidationReport example() {
  ValidationReport report;
  report.kept_ratio = 0.5;
  report.num_sequences = 2;
  report.num_tokens = 2048;
  report.kv_bytes = 500;
  report.original_kv_bytes = 1000;
  Comparison& continuation = report.continuation;
  continuation.num_positions = 1000;
  continuation.kl_divergence = {0.0123, 0.0004};
  continuation.kl_p99 = 0.25;
  continuation.perplexity_ratio = 1.004;
  continuation.same_top = {0.971, 0.003};
  continuation.kl_histogram.counts[20] = 1000;
  continuation.kl_by_position = {{512, 768, 0.01}, {768, 1024, std::nan("")}};
  report.teacher_forced = continuation;
  report.options["candidate"] = "a<b>&\"c";
  report.options["reference"] = "original";
  return report;
}

TEST(Report, SummaryLine) {
  EXPECT_EQ(summary_line(example()),
            "kept_ratio 0.500 of 1024 tokens  KLD 0.0123 ± 0.0004  perplexity ratio 1.0040  same "
            "top 97.1 %");
}

TEST(Report, SummaryOfOneSequenceStatesNoError) {
  ValidationReport report = example();
  report.continuation.kl_divergence = {0.0123};
  EXPECT_THAT(summary_line(report), HasSubstr("KLD 0.0123  perplexity"));
}

TEST(Report, JsonHasBothSettingsAndNoNan) {
  ValidationReport report = example();
  report.continuation.reference_nll = {2.5};
  report.missed = {"KL divergence too large"};
  const Json json = parse_json(dump_json(to_json(report)), "report");
  EXPECT_EQ(json["kept_ratio"], 0.5);
  EXPECT_EQ(json["continuation"]["kl_divergence"]["mean"], 0.0123);
  EXPECT_EQ(json["continuation"]["kl_divergence"]["p99"], 0.25);
  EXPECT_TRUE(json["continuation"]["reference_nll"]["standard_error"].is_null());
  EXPECT_TRUE(json["continuation"]["kl_divergence"]["by_position"][1]["mean"].is_null());
  EXPECT_EQ(json["teacher_forced"]["same_top"]["standard_error"], 0.003);
  EXPECT_EQ(json["missed"][0], "KL divergence too large");
}

TEST(Report, TableHasARowPerNumber) {
  const std::string text = text_report(example());
  for (const char* part : {"continuation", "teacher-forced", "99.9 %", "0.971 ± 0.003"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Report, WarnsWhereTheCalibrationTextIsOfAnotherKind) {
  ValidationReport report = example();
  report.teacher_forced.reference_nll = {2.0, 0.1};
  EXPECT_EQ(calibration_warning(report), "");
  EXPECT_TRUE(to_json(report)["calibration"].is_null());
  for (const double far : {3.1, 1.3}) {
    report.calibration_nll = Estimate{far, 0.1};
    EXPECT_THAT(calibration_warning(report), HasSubstr("2.00 nats per token"));
    EXPECT_THAT(calibration_warning(report), HasSubstr("--calibration FILE"));
    EXPECT_THAT(text_report(report), HasSubstr("of another kind"));
    EXPECT_THAT(html_report(report), HasSubstr("of another kind"));
    EXPECT_EQ(to_json(report)["calibration"]["warning"], calibration_warning(report));
  }
  for (const double near : {2.9, 1.4}) {
    report.calibration_nll = Estimate{near, 0.1};
    EXPECT_EQ(calibration_warning(report), "");
    EXPECT_TRUE(to_json(report)["calibration"]["warning"].is_null());
    EXPECT_THAT(html_report(report), Not(HasSubstr("of another kind")));
  }
}

TEST(TextOverlap, FindsPassagesOfBothTexts) {
  TokenSet calibration, evaluation;
  std::vector<std::int64_t> known(100), other(100);
  std::iota(known.begin(), known.end(), 0);
  std::iota(other.begin(), other.end(), 1000);
  calibration.sequences = {known, {1, 2, 3}};
  const auto part = [](const std::vector<std::int64_t>& from, std::int64_t first,
                       std::int64_t count) {
    return std::vector<std::int64_t>(from.begin() + first, from.begin() + first + count);
  };
  const auto joined = [](std::vector<std::vector<std::int64_t>> parts) {
    std::vector<std::int64_t> all;
    for (const auto& one : parts) {
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const std::int64_t least = kOverlapTokens;
  evaluation.sequences = {joined({part(known, 5, least - 1), part(other, 0, 9)}),  // too short
                          joined({part(other, 0, 7), part(known, 40, least + 8), part(other, 7, 1),
                                  part(known, 2, least)}),
                          {},
                          known};
  const TextOverlap overlap = find_overlap(evaluation, calibration);
  const std::int64_t expected[3][3] = {{1, 7, least + 8}, {1, least + 16, least}, {3, 0, 100}};
  ASSERT_EQ(overlap.passages.size(), 3u);
  std::int64_t shared = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(overlap.passages[i].sequence, expected[i][0]);
    EXPECT_EQ(overlap.passages[i].first, expected[i][1]);
    EXPECT_EQ(overlap.passages[i].count, expected[i][2]);
    shared += expected[i][2];
  }
  EXPECT_DOUBLE_EQ(overlap.share(),
                   static_cast<double>(shared) / static_cast<double>(evaluation.num_tokens()));
  EXPECT_EQ(to_json(overlap)["passages"][1]["first"], least + 16);
  EXPECT_EQ(find_overlap(calibration, evaluation).passages.size(), 1u);
  EXPECT_TRUE(find_overlap({}, calibration).passages.empty());
}

TEST(Report, SaysWhereTheTextsOverlap) {
  ValidationReport report = example();
  report.calibration_nll = report.teacher_forced.reference_nll;
  report.overlap = TextOverlap{.num_tokens = 10000};
  EXPECT_THAT(html_report(report), HasSubstr("0.00 % of the evaluation text stands in the"));
  EXPECT_THAT(text_report(report), Not(HasSubstr("stands in the calibration text")));
  report.overlap->passages = {{0, 3, 100}};
  EXPECT_EQ(overlap_warning(*report.overlap), "");
  report.overlap->passages = {{0, 3, 40}, {2, 0, 80}, {5, 7, 33}, {6, 1, 50}};
  EXPECT_THAT(
      text_report(report),
      HasSubstr("2 % of the evaluation text stands in the calibration text, too (80 tokens of "
                "sequence 2 from token 0 on, 50 tokens of sequence 6 from token 1 on, 40 "
                "tokens of sequence 0 from token 3 on, and 1 more passages)"));
  EXPECT_EQ(to_json(report)["calibration"]["overlap"]["share"], 0.0203);
}

TEST(Verdict, NamesThresholdsThatAreMissed) {
  ValidateOptions options;
  options.max_kld = 0.01;
  options.max_ppl_ratio = 1.01;
  options.min_same_top = 0.98;
  const std::vector<std::string> missed = missed_thresholds(options, example());
  EXPECT_THAT(missed, ElementsAre("KL divergence 0.0123 exceeds --max-kld 0.01",
                                  "same top 0.971 is below --min-same-top 0.98"));
  ValidationReport unknown = example();
  unknown.continuation.kl_divergence.mean = std::nan("");
  EXPECT_THAT(missed_thresholds(options, unknown).front(), HasSubstr("exceeds --max-kld"));
}

// Two sequences have one degree of freedom: the interval of 0.0123 ± 0.0004 reaches to 0.0123 ± 12.706 * 0.0004.
TEST(Verdict, WarnsOfThresholdsThatTheTextDoesNotDecide) {
  ValidateOptions options;
  const auto warnings_at = [&](double limit, std::int64_t num_sequences) {
    options.max_kld = limit;
    ValidationReport report = example();
    report.num_sequences = num_sequences;
    return precision_warnings(options, report);
  };
  EXPECT_THAT(
      warnings_at(0.0123 + 12.7 * 0.0004, 2),
      ElementsAre(AllOf(
          HasSubstr(
              "KL divergence 0.0123 ± 0.0004 of 2 sequences does not decide --max-kld 0.01738"),
          HasSubstr("kvvalidate --num-sequences"))));
  EXPECT_THAT(warnings_at(0.0123 + 12.71 * 0.0004, 2), IsEmpty());
  EXPECT_THAT(warnings_at(0.0123 - 12.7 * 0.0004, 2), SizeIs(1));  // missed, and as little decided
  EXPECT_THAT(warnings_at(0.0123 + 2.2 * 0.0004, 11), SizeIs(1));
  EXPECT_THAT(warnings_at(0.0123 + 2.3 * 0.0004, 11), IsEmpty());
  EXPECT_THAT(warnings_at(0.0123 + 1.97 * 0.0004, 100), SizeIs(1));  // 1.984 of 99 degrees
  EXPECT_THAT(warnings_at(0.0123 + 1.99 * 0.0004, 100), IsEmpty());
  options.max_kld.reset();
  options.max_ppl_ratio = 1.005;
  ValidationReport report = example();
  report.continuation.log_perplexity_ratio = {std::log(1.004), 0.0001};
  EXPECT_THAT(precision_warnings(options, report), ElementsAre(HasSubstr("--max-ppl-ratio 1.005")));
}

TEST(Verdict, WarnsOfDivergencesOfTooLittleText) {
  ValidationReport report = example();
  EXPECT_THAT(precision_warnings({}, report), IsEmpty());
  report.continuation.kl_divergence = {0.0123, 0.0005};
  EXPECT_THAT(precision_warnings({}, report),
              ElementsAre(HasSubstr("its 95 % interval is at least half its value")));
  report.num_sequences = 1;
  report.continuation.kl_divergence = {0.0123};
  EXPECT_THAT(precision_warnings({}, report),
              ElementsAre(HasSubstr("KL divergence 0.0123 of 1 sequence is uncertain: a "
                                    "standard error needs at least two")));
  ValidateOptions options;
  options.min_same_top = 0.9;
  report.continuation.same_top = {0.971};
  EXPECT_THAT(precision_warnings(options, report)[1],
              HasSubstr("does not decide --min-same-top 0.9: a standard error needs at least two"));
  report.continuation.kl_divergence = {1e-9};
  EXPECT_THAT(precision_warnings({}, report), IsEmpty());  // the same model
}

TEST(Report, StatesWhatIsImprecise) {
  ValidationReport report = example();
  report.imprecise = {"too little <text>"};
  EXPECT_EQ(to_json(report)["warnings"], Json::array({"too little <text>"}));
  EXPECT_THAT(text_report(report), HasSubstr("\ntoo little <text>\n"));
  EXPECT_THAT(html_report(report), HasSubstr("too little &lt;text&gt;"));
}

TEST(HtmlReport, ShowsWhatEachLayerKeeps) {
  ValidationReport report = example();
  EXPECT_THAT(html_report(report), Not(HasSubstr("Bits by layer")));
  report.layers = {{KvSource::kPlain, 1, 16}, {KvSource::kCoded, 0.25, 4}};
  EXPECT_THAT(html_report(report), HasSubstr("Bits by layer"));
  EXPECT_THAT(html_report(report), HasSubstr("layer 1, coded: 4.00 bits, 25.0 % kept"));
  EXPECT_EQ(to_json(report)["layers"][1],
            (Json{{"layer", 1}, {"source", "coded"}, {"kept_ratio", 0.25}, {"bits", 4.0}}));
}

TEST(HtmlReport, IsSelfContainedAndEscaped) {
  ValidationReport report = example();
  report.missed = {"same top 0.5 is below --min-same-top 0.9"};
  const std::string html = html_report(report);
  for (const char* forbidden : {"http", "src=", "<script", "url(", "@import", "a<b>", "nan"}) {
    EXPECT_THAT(html, Not(HasSubstr(forbidden)));
  }
  EXPECT_THAT(html, HasSubstr("a&lt;b&gt;&amp;&quot;c"));
  EXPECT_THAT(html, HasSubstr("same top 0.5 is below --min-same-top 0.9"));
  EXPECT_THAT(html, HasSubstr("97.1 %"));
}

TEST(Chart, AxisFromZeroHasRoundTicks) {
  const Axis axis = axis_from_zero(0.37, "share");
  EXPECT_DOUBLE_EQ(axis.end, 0.4);
  ASSERT_EQ(axis.ticks.size(), 5u);
  EXPECT_EQ(axis.ticks[0].label, "0");  // not "-0"
  EXPECT_EQ(axis.ticks[1].label, "0.1");
  EXPECT_DOUBLE_EQ(axis_from_zero(0, "nothing").end, 1);
}

TEST(Chart, AxisBetweenHasTicksInside) {
  const Axis axis = axis_between(512, 1024, "tokens");
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks) {
    labels.push_back(tick.label);
  }
  EXPECT_THAT(labels, ::testing::ElementsAre("600", "800", "1000"));
  EXPECT_EQ(axis.begin, 512);
}

}  // namespace
}  // namespace kvc
