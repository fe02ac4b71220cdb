# Tests and benchmarks of the cache kernels on a GPU: the CUDA toolkit and no other library, so that they run on a
# machine that has nothing else.
set(_cases "${_kvc_root}/tests/runtime/kernels/cuda")
add_executable(cuda_cache_gpu_test
  ${_cases}/budget_cases.cpp
  ${_cases}/case_inputs.cpp
  ${_cases}/code_cases.cpp
  ${_cases}/gpu_cache_test.cpp
  ${_cases}/gpu_main.cpp
  ${_cases}/gpu_memory.cpp
  ${_cases}/product_cases.cpp)
add_executable(cuda_cache_bench ${_cases}/gpu_budget_bench.cpp ${_cases}/gpu_cache_bench.cpp ${_cases}/gpu_main.cpp ${_cases}/gpu_memory.cpp ${_cases}/gpu_timing.cpp)
target_link_libraries(cuda_cache_gpu_test PRIVATE kvc_cuda_references)
target_link_libraries(cuda_cache_bench PRIVATE kvc_cuda_kernels CUDA::cublas CUDA::cusolver)
foreach(_program cuda_cache_gpu_test cuda_cache_bench)
  target_compile_options(${_program} PRIVATE -Wall -Wextra -Wshadow -Werror)
endforeach()
