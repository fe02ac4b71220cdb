# Tests and benchmarks of the attention kernels on a GPU: the CUDA toolkit and no other library.
set(_attention "${_kvc_root}/tests/runtime/kernels/cuda")
add_executable(cuda_kernels_test
  ${_attention}/attention_cases.cpp
  ${_attention}/case_inputs.cpp
  ${_attention}/combine_cases.cpp
  ${_attention}/dense_cases.cpp
  ${_attention}/gpu_attention_test.cpp
  ${_attention}/gpu_main.cpp
  ${_attention}/gpu_memory.cpp
  ${_attention}/rank_case.cpp
  ${_attention}/rank_cases.cpp)
add_executable(cuda_kernels_bench
  ${_attention}/gpu_attention_bench.cpp
  ${_attention}/gpu_attention_rates.cpp
  ${_attention}/gpu_bench_inputs.cpp
  ${_attention}/gpu_main.cpp
  ${_attention}/gpu_memory.cpp
  ${_attention}/gpu_timing.cpp)
target_link_libraries(cuda_kernels_test PRIVATE kvc_cuda_references)
target_link_libraries(cuda_kernels_bench PRIVATE kvc_cuda_kernels CUDA::cublas)
foreach(_program cuda_kernels_test cuda_kernels_bench)
  target_compile_options(${_program} PRIVATE -Wall -Wextra -Wshadow -Werror)
endforeach()
