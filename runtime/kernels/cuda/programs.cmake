# Tests and benchmarks of the kernels on a GPU: the CUDA toolkit and no other library, so that they run on a machine that
# has nothing else.
function(kvc_gpu_program name library)
  list(TRANSFORM ARGN PREPEND "${_kvc_root}/tests/runtime/kernels/cuda/")
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${library})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wshadow -Werror)
endfunction()

set(_test kvc_cuda_references case_inputs.cpp gpu_backend.cpp gpu_main.cpp)
kvc_gpu_program(cuda_kernels_test ${_test}
  attention_cases.cpp combine_cases.cpp dense_cases.cpp gpu_attention_test.cpp rank_case.cpp rank_cases.cpp)
kvc_gpu_program(cuda_cache_gpu_test ${_test} budget_cases.cpp code_cases.cpp gpu_cache_test.cpp)
kvc_gpu_program(cuda_step_gpu_test ${_test} append_cases.cpp gpu_step_test.cpp sample_cases.cpp step_cases.cpp)

set(_bench kvc_cuda_kernels gpu_backend.cpp gpu_main.cpp gpu_timing.cpp)
kvc_gpu_program(cuda_kernels_bench ${_bench} gpu_attention_bench.cpp gpu_attention_rates.cpp gpu_bench_inputs.cpp)
kvc_gpu_program(cuda_cache_bench ${_bench} gpu_budget_bench.cpp gpu_cache_bench.cpp)
kvc_gpu_program(cuda_step_bench ${_bench} gpu_step_bench.cpp)
target_link_libraries(cuda_kernels_bench PRIVATE CUDA::cublas)
target_link_libraries(cuda_cache_bench PRIVATE CUDA::cusolver)
