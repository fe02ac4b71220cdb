# References that the CUDA kernels are compared with, and what these share: plain loops without Highway, so that they go
# with the CUDA kernels where those are a project of their own.
set(KVC_CUDA_REFERENCES
  code_tiles_reference.cpp
  coded_attention_reference.cpp
  coded_keys.cpp
  combine_partials.cpp
  decode_attention_reference.cpp
  fused_attention_reference.cpp
  integer_rows.cpp
  quantise_reference.cpp
  query_quads.cpp
  reference_rows.cpp
  cuda/budget_step_reference.cpp
  cuda/sample_tokens_reference.cpp)
list(TRANSFORM KVC_CUDA_REFERENCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")
