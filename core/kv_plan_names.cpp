#include "core/enum_names.h"
#include "core/kv_plan.h"

namespace kvc {
namespace {

constexpr EnumName<KvSource> kKvSources[] = {{KvSource::kPlain, "plain"},
                                             {KvSource::kLatent, "latent"},
                                             {KvSource::kCoded, "coded"},
                                             {KvSource::kFused, "fused"},
                                             {KvSource::kPaired, "paired"}};
constexpr EnumName<CodedParts> kCodedParts[] = {{CodedParts::kBoth, "keys and values"},
                                                {CodedParts::kKeys, "keys"},
                                                {CodedParts::kValues, "values"}};
constexpr EnumName<FusionForm> kFusionForms[] = {{FusionForm::kChannel, "channel"},
                                                 {FusionForm::kComplex, "complex"},
                                                 {FusionForm::kFull, "full"}};
constexpr EnumName<LatentBasis> kLatentBases[] = {{LatentBasis::kWeights, "weights"},
                                                  {LatentBasis::kCalibrated, "calibrated"},
                                                  {LatentBasis::kRequest, "request"}};
constexpr EnumName<LaterTokens> kLaterTokens[] = {{LaterTokens::kExact, "exact"},
                                                  {LaterTokens::kProject, "project"},
                                                  {LaterTokens::kNewSegment, "new-segment"}};
constexpr EnumName<BasisSolver> kBasisSolvers[] = {{BasisSolver::kEigh, "eigh"},
                                                   {BasisSolver::kSubspace, "subspace"}};
constexpr EnumName<MergeRule> kMergeRules[] = {{MergeRule::kNone, "none"},
                                               {MergeRule::kMean, "mean"},
                                               {MergeRule::kFisher, "fisher"},
                                               {MergeRule::kSensitivity, "sensitivity"},
                                               {MergeRule::kLs, "ls"}};
constexpr EnumName<Granularity> kGranularities[] = {{Granularity::kToken, "token"},
                                                    {Granularity::kGroup, "group"}};
constexpr EnumName<PrefillMode> kPrefillModes[] = {{PrefillMode::kExact, "exact"},
                                                   {PrefillMode::kTruncated, "truncated"},
                                                   {PrefillMode::kCoded, "coded"}};
constexpr EnumName<UnmergedForm> kUnmergedForms[] = {{UnmergedForm::kPlain, "plain"},
                                                     {UnmergedForm::kLatent, "latent"}};
constexpr EnumName<KvDtype> kKvDtypes[] = {
    {KvDtype::kFloat32, "float32"}, {KvDtype::kBFloat16, "bfloat16"},
    {KvDtype::kFloat16, "float16"}, {KvDtype::kInt8, "int8"},
    {KvDtype::kInt4, "int4"},       {KvDtype::kInt2, "int2"}};

}  // namespace

std::string to_string(KvSource value) { return name_of(kKvSources, value); }
std::string to_string(CodedParts value) { return name_of(kCodedParts, value); }
std::string to_string(FusionForm value) { return name_of(kFusionForms, value); }
std::string to_string(LatentBasis value) { return name_of(kLatentBases, value); }
std::string to_string(LaterTokens value) { return name_of(kLaterTokens, value); }
std::string to_string(BasisSolver value) { return name_of(kBasisSolvers, value); }
std::string to_string(MergeRule value) { return name_of(kMergeRules, value); }
std::string to_string(Granularity value) { return name_of(kGranularities, value); }
std::string to_string(PrefillMode value) { return name_of(kPrefillModes, value); }
std::string to_string(UnmergedForm value) { return name_of(kUnmergedForms, value); }
std::string to_string(KvDtype value) { return name_of(kKvDtypes, value); }

KvSource parse_kv_source(const std::string& name) {
  return value_of(kKvSources, name, "layer source");
}
LatentBasis parse_latent_basis(const std::string& name) {
  return value_of(kLatentBases, name, "basis of latents");
}
LaterTokens parse_later_tokens(const std::string& name) {
  return value_of(kLaterTokens, name, "form of later tokens");
}
BasisSolver parse_basis_solver(const std::string& name) {
  return value_of(kBasisSolvers, name, "solver");
}
CodedParts parse_coded_parts(const std::string& name) {
  return value_of(kCodedParts, name, "part");
}
FusionForm parse_fusion_form(const std::string& name) {
  return value_of(kFusionForms, name, "form of fusion");
}
MergeRule parse_merge_rule(const std::string& name) {
  return value_of(kMergeRules, name, "merge rule");
}
Granularity parse_granularity(const std::string& name) {
  return value_of(kGranularities, name, "granularity");
}
PrefillMode parse_prefill_mode(const std::string& name) {
  return value_of(kPrefillModes, name, "prefill mode");
}
UnmergedForm parse_unmerged_form(const std::string& name) {
  return value_of(kUnmergedForms, name, "form of unmerged tokens");
}
KvDtype parse_kv_dtype(const std::string& name) { return value_of(kKvDtypes, name, "KV dtype"); }

bool is_integer(KvDtype dtype) { return bits_per_element(dtype) <= 8; }

int bytes_per_element(KvDtype dtype) { return dtype == KvDtype::kFloat32 ? 4 : 2; }

int bits_per_element(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kInt8:
      return 8;
    case KvDtype::kInt4:
      return 4;
    case KvDtype::kInt2:
      return 2;
    default:
      return 8 * bytes_per_element(dtype);
  }
}

}  // namespace kvc
